"""`orchid token`."""

from __future__ import annotations

from typing import Annotated

import typer


def token(
    name: Annotated[str, typer.Argument(help="What the audit log calls whoever has it.")],
    role: Annotated[
        list[str] | None, typer.Option(help="infer, operate or worker; can be repeated.")
    ] = None,
    tenant: Annotated[
        str, typer.Option(help="Who is charged for its requests; needed by infer.")
    ] = "",
) -> None:
    """Draw a bearer token and print the entry that makes a control plane know it.

    The token goes to standard output and is kept nowhere; the entry, which holds only its hash,
    goes to standard error and belongs into the file of `controlplane.identities`.
    """
    import hashlib
    import json
    import secrets

    from deploy.cli.output import fail

    roles = role or ["infer"]
    unknown = sorted(set(roles) - {"infer", "operate", "worker"})
    if unknown:
        fail(f"no role {', '.join(unknown)}", "roles: infer, operate, worker")
    if "infer" in roles and not tenant:
        fail("the role infer needs a tenant to charge", "--tenant NAME, or '*' to let it name any")
    drawn = secrets.token_urlsafe(32)
    digest = hashlib.sha256(drawn.encode()).hexdigest()
    lines = [f"- name: {json.dumps(name)}"]
    if tenant:
        lines.append(f"  tenant: {json.dumps(tenant)}")
    lines += [f"  roles: [{', '.join(roles)}]", f"  token_sha256: [{digest}]"]
    typer.echo("\n".join(f"  {line}" for line in lines), err=True)
    typer.echo(drawn)
