"""``python -m coconet_lab.cli``, where the `coconet-lab` script is not on PATH."""

import sys

from coconet_lab.cli.app import main

sys.exit(main())
