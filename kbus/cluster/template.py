"""Imported once, in the process that members are forked from: they start at once, and share its memory."""

import gc

import kbus.cluster.member_process
import kbus.node.main  # noqa: F401 - imported to be there
from kbus.cluster.orphans import die_with_supervisor

die_with_supervisor()

# A collection in a member would write to every object made here, and so copy each page of them.
gc.collect()
gc.freeze()
