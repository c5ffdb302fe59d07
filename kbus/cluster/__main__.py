"""`python -m kbus.cluster FOLDER FD`: the supervisor, which leaves whoever starts it at once.

It tells on the descriptor when it serves, or why it does not, and closes it. The fork comes before anything
is imported that might have threads."""

import json
import os
import sys
from pathlib import Path


def main() -> None:
    folder_path, descriptor = Path(sys.argv[1]), int(sys.argv[2])
    if os.fork():
        os._exit(0)
    os.setsid()
    os.set_inheritable(descriptor, False)
    with os.fdopen(descriptor, "w", encoding="utf-8") as starter:

        def tell(**message: object) -> None:
            starter.write(json.dumps(message) + "\n")
            starter.close()

        from kbus.cluster.folder import ClusterFolder
        from kbus.cluster.server import AlreadySupervisedError, run
        from kbus.cluster.spec import SpecError

        try:
            run(ClusterFolder(folder_path), lambda: tell(serving=True))
        except AlreadySupervisedError:
            tell(supervised=True)
        except SpecError as error:
            tell(error=str(error))


main()
