"""The API of work on runtimes: for workers, and for the people whose tasks they run."""
