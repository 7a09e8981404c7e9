"""`lengthwise keys`: API keys of the gateway's tenants."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from lengthwise.cli.model_options import given_fields, options_from, validated
from lengthwise.cli.output import AsJson, note, show
from lengthwise.gateway.config import TenantConfig
from lengthwise.gateway.keys import KeysFile, add_key, read_keys, remove_keys
from lengthwise.reports.page import Document
from lengthwise.reports.tables import Table

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Make, list and remove API keys. The file holds hashes only; a running gateway reads it when it changes.",
)

_File = Annotated[Path, typer.Option("--keys", metavar="FILE", help="The keys file.", envvar="LENGTHWISE_SERVE_KEYS")]
_DEFAULT = Path("keys.json")


@app.command()
@options_from(TenantConfig, without=["name"])
def add(
    context: typer.Context,
    tenant: Annotated[str, typer.Argument(help="The tenant, new or known.")],
    keys: _File = _DEFAULT,
    **_: Any,
) -> None:
    """Make a key for a tenant and print it: it is shown once. Limits that are given replace the tenant's.

    A tenant may have several keys, which share its limits.

    Example: `lengthwise keys add team-a --requests-per-minute 600 --tokens-per-minute 200000`
    """
    settings = given_fields(context, TenantConfig)
    validated(TenantConfig, {"name": "TENANT"}, **{"name": tenant, **settings})
    typer.echo(add_key(keys, tenant, settings))
    note(f"the key is stored as a hash in {keys}; serve with --keys {keys}")


@app.command("list")
def list_keys(keys: _File = _DEFAULT, as_json: AsJson = False) -> None:
    """List tenants, their limits and the ids of their keys."""
    known = read_keys(keys)
    show(Document("", _tables(known), _plain(known)), as_json=as_json)


@app.command()
def remove(
    name: Annotated[str, typer.Argument(metavar="TENANT|ID", help="A tenant, or the id of one key.")],
    keys: _File = _DEFAULT,
) -> None:
    """Remove one key, or a tenant with all its keys. Requests that run finish."""
    removed = remove_keys(keys, name)
    typer.echo(f"removed {', '.join(removed) or 'a tenant without keys'}")


def _plain(file: KeysFile) -> list[dict[str, Any]]:
    return [
        {
            **tenant.model_dump(exclude={"keys"}),
            "keys": [{"id": key.id, "created": key.created.isoformat()} for key in tenant.keys],
        }
        for tenant in file.tenants
    ]


def _tables(file: KeysFile) -> list[Table]:
    rows = [
        [
            tenant.name,
            key.id,
            f"{key.created:%Y-%m-%d %H:%M}",
            "yes" if tenant.admin else "",
            f"{tenant.weight:g}",
            tenant.request_class or str(tenant.priority),
            *(
                "" if limit is None else str(limit)
                for limit in (tenant.requests_per_minute, tenant.tokens_per_minute, tenant.concurrency)
            ),
        ]
        for tenant in file.tenants
        for key in tenant.keys
    ]
    return [
        Table(
            "API keys",
            ["tenant", "id", "created", "admin", "weight", "priority", "requests/min", "tokens/min", "concurrency"],
            rows,
        )
    ]
