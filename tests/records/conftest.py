"""Property tests have no deadline for one example: on a loaded machine it says nothing about the code."""

from hypothesis import settings

settings.register_profile("records", deadline=None)
settings.load_profile("records")
