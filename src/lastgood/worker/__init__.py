"""The process on another machine: claims tasks, drives an agent CLI, and reports."""
