"""`lastgood tasks answer`: what a running task asks a person, and the answer to it."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import Any

from lastgood.cli.output import one_line, print_json, print_line, remark
from lastgood.cli.parser import CommandParser
from lastgood.cli.work_backend import open_work
from lastgood.client.work_models import QuestionInfo
from lastgood.errors import NothingPending, WrongUsage


def configure_answer(parser: CommandParser) -> None:
    verdict = parser.add_mutually_exclusive_group()
    verdict.add_argument("--allow", action="store_true", help="allow the tool call")
    verdict.add_argument(
        "--deny", action="store_true", help="deny it; with neither option, list the pending questions"
    )
    parser.add_argument("--reason", metavar="TEXT", help="give the agent this reason")
    parser.add_argument("--question", metavar="ID", help="answer this question, if there are several")


async def answer_task(args: argparse.Namespace) -> int:
    answers = args.allow or args.deny
    if not answers and (args.reason or args.question):
        raise WrongUsage("--reason and --question belong to an answer; add --allow or --deny")
    async with open_work(args, writes=answers) as work:
        pending = await work.questions(args.id)
        if answers:
            chosen = _chosen(pending, args.question)
            pending = (
                await work.answer_question(args.id, chosen.id, allowed=args.allow, reason=args.reason),
            )
    if args.json:
        print_json([_plain(one) for one in pending])
    else:
        for one in pending:
            print_line(_line(one))
        if not pending:
            remark("no question is pending")
    return 0


def _chosen(pending: tuple[QuestionInfo, ...], id: str | None) -> QuestionInfo:
    found = [one for one in pending if id in (None, one.id)]
    if not found:
        raise NothingPending("No question of this task is pending; see `lastgood tasks show`")
    if len(found) > 1:
        ids = ", ".join(one.id for one in found)
        raise WrongUsage(f"{len(found)} questions are pending; name one with --question: {ids}")
    return found[0]


def _line(question: QuestionInfo) -> str:
    given = json.dumps(question.body.get("input"), ensure_ascii=False)
    verdict = ""
    if question.answer is not None:
        verdict = "  allowed" if question.answer.get("allowed") else "  denied"
    return one_line(f"{question.id}  {question.body.get('tool') or ''} {given}{verdict}")


def _plain(question: QuestionInfo) -> dict[str, Any]:
    return asdict(question) | {"deadline_at": question.deadline_at.isoformat()}
