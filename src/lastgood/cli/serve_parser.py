"""The words of `lastgood serve`."""

from __future__ import annotations

from lastgood.cli.command_group import CommandParser, Commands, start

#: Served where no agent is named.
DEFAULT_AGENT = "default"


def add_serve(commands: Commands, places: CommandParser) -> None:
    about = "serve agents over HTTP until stopped"
    details = "SIGTERM or Ctrl-C stops the server; running turns may finish within --shutdown-grace."
    serve = commands.add_parser(
        "serve",
        help=about,
        description=f"{about[0].upper()}{about[1:]}. {details}",
        parents=[places],
    )
    serve.set_defaults(command=start("serve", "serve"))
    add_served(serve)
    for name, metavar, meaning in (
        ("--listen", "ADDRESS", "where to listen: HOST:PORT, unix://PATH or fd://N (127.0.0.1:8080)"),
        ("--metrics-listen", "ADDRESS", "where /metrics is, instead of there"),
        ("--migrate", "MODE", "auto: bring the database up to date; check: refuse one that is not (auto)"),
        ("--token-file", "FILE", "its first line is a token that may do everything"),
        ("--token-env", "NAME", "a variable that holds such a token"),
        ("--public-url", "URL", "the address under which others reach the server"),
        ("--working-dir-root", "DIR", "sessions may only name working folders below this one"),
        ("--safety", "MODE", "what tools may do: strict, balanced, restricted (default) or autonomous"),
        ("--env-file", "FILE", "NAME=value lines with keys of models"),
        ("--max-request-size", "SIZE", "of a request to /v1 (32M)"),
        ("--turn-idle-timeout", "TIME", "how long a model or a tool may give no sign of life (5m)"),
        ("--turn-timeout", "TIME", "how long one attempt may take (1h)"),
        ("--disconnect-grace", "TIME", "how long a turn of /v1 is kept for a client that has gone (30s)"),
        ("--shutdown-grace", "TIME", "how long running turns may finish at the end (10s)"),
        ("--pull-interval", "TIME", "how old the copy of an agent's URL may be (60s)"),
        ("--conversations-max", "N", "histories kept decoded in memory; none is lost by it (1000)"),
        ("--retain", "TIME", "how long sessions are kept that nobody uses or has starred (for ever)"),
        ("--token-rate", "N", "turns that may begin in a minute under one token (any)"),
        ("--token-running", "N", "turns that may run at once under one token (any)"),
        ("--user-rate", "N", "turns that may begin in a minute for one user (any)"),
        ("--user-running", "N", "turns that may run at once for one user (any)"),
        ("--tenant-sessions", "N", "sessions that a tenant may have (any)"),
        ("--tenant-bytes", "SIZE", "bytes of turns that a tenant may store, like 10G (any)"),
        ("--token-sessions", "N", "sessions made with one token that may exist (any)"),
        ("--token-bytes", "SIZE", "bytes of turns that the sessions of one token may store, like 1G (any)"),
    ):
        serve.add_argument(name, metavar=metavar, help=meaning)
    for name, metavar, meaning in (
        ("--allowed-host", "HOST", "a name under which the server may be asked for"),
        ("--cors-origin", "ORIGIN", "an origin whose pages may ask"),
        ("--only", "SURFACE", "serve this surface alone: api or chat"),
        ("--preset", "CLIENT", "read requests of this chat client its way: open-webui or librechat"),
        ("--trusted-proxy", "ADDRESS", "a proxy whose X-Forwarded headers are believed"),
    ):
        serve.add_argument(
            name, metavar=metavar, action="append", help=f"{meaning}; may be given several times"
        )
    serve.add_argument(
        "--insecure-no-auth",
        action="store_const",
        const="yes",
        help="anybody may do everything, also from other machines",
    )
    serve.add_argument(
        "--tracing",
        action="store_const",
        const="yes",
        help="send spans to an OpenTelemetry collector, as the OTEL_EXPORTER_OTLP_… variables say",
    )


def add_served(parser: CommandParser) -> None:
    parser.add_argument(
        "agents",
        metavar="AGENT",
        nargs="*",
        default=[DEFAULT_AGENT],
        help="agent file, directory of agent files, URL, name from lastgood.toml or built-in agent; "
        "default: the built-in agent `default`",
    )
