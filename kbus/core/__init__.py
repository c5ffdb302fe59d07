"""Pure decisions: state, events and a `now_ms` go in, new state and effects come out. No I/O, no clock."""
