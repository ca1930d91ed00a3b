"""Work on remote runtimes: workers, their runtimes, tasks and claims."""
