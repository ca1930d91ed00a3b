"""The APIs of the server.

Surfaces parse requests and format responses; they decide nothing about a session.
"""
