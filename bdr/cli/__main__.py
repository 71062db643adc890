"""`python -m bdr.cli`"""

from bdr.cli import main

if __name__ == "__main__":
    main()
