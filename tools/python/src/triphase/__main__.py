"""The command `triphase`: the program takes this process's place."""

import os
import sys
from typing import NoReturn

from triphase._program import environment, find_program


def main() -> NoReturn:
    os.execve(find_program(), ["triphase", *sys.argv[1:]], environment())


if __name__ == "__main__":
    main()
