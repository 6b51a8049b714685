"""`python -m warren.ctl`: the command line over the management API without the rest of Warren."""

import sys

from warren.ctl.command_table import main

sys.exit(main(sys.argv[1:]))
