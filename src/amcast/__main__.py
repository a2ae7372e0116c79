"""`python -m amcast`: the command `amcast`, where its folder is not on the path."""

from amcast.cli import main

if __name__ == "__main__":
    main()
