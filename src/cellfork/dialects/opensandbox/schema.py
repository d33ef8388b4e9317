"""What clients of OpenSandbox's lifecycle API send, as types.  Unknown fields are ignored; wrong types are refused.

Source: ``specs/sandbox-lifecycle.yml`` of OpenSandbox, and what its packages send beyond.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

Action = Literal["allow", "deny"]
Text = Annotated[str, Meta(max_length=4096)]
Target = Annotated[str, Meta(min_length=1, max_length=260)]
Seconds = Annotated[int, Meta(ge=60, le=10 * 365 * 86400)]
Strings = Annotated[dict[Text, Text], Meta(max_length=256)]


class ImageAuth(Struct):
    """Credentials for a registry.  Nothing is fetched from any, so they are neither used nor kept."""

    username: Text = ""
    password: Text = ""


class Image(Struct):
    """The container image that a sandbox is to be like."""

    uri: Annotated[str, Meta(min_length=1, max_length=1024)]
    auth: ImageAuth | None = None


class Platform(Struct):
    """What a sandbox has to run on."""

    os: Text
    arch: Text


class Rule(Struct, frozen=True):
    """One rule of a network policy."""

    action: Action
    target: Target


class NetworkPolicy(Struct, rename="camel"):
    """What a sandbox may reach; the first rule that fits a host decides."""

    default_action: Action | None = None
    egress: Annotated[list[Rule], Meta(max_length=256)] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether it says nothing."""
        return self.default_action is None and not self.egress


class CredentialProxy(Struct):
    """Whether requests are to be given credentials on their way out."""

    enabled: bool = False


class Host(Struct):
    """A directory of the server's machine."""

    path: Annotated[str, Meta(min_length=1, max_length=4096)]


class Claim(Struct, rename="camel"):
    """A named volume.  What it is to be on Kubernetes is a hint that means nothing elsewhere, as upstream."""

    claim_name: Annotated[str, Meta(max_length=253, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?\Z")]
    create_if_not_exists: bool = True
    delete_on_sandbox_termination: bool = False
    storage_class: Text | None = None
    storage: Text | None = None
    access_modes: list[Text] | None = None


class Volume(Struct, rename="camel"):
    """Something that a sandbox sees at a path of its own."""

    name: Annotated[str, Meta(max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?\Z")]
    mount_path: Annotated[str, Meta(min_length=1, max_length=1024)]
    host: Host | None = None
    pvc: Claim | None = None
    ossfs: dict[str, Any] | None = None
    read_only: bool = False
    sub_path: Annotated[str, Meta(max_length=1024)] | None = None


class CreateSandbox(Struct, rename="camel"):
    """``POST /sandboxes``."""

    image: Image | None = None
    snapshot_id: Text | None = None
    template_id: Text | None = None
    entrypoint: Annotated[list[Text], Meta(max_length=1024)] | None = None
    timeout: Seconds | None = None
    resource_limits: Strings | None = None
    resource_requests: Strings | None = None
    env: Annotated[dict[str, str], Meta(max_length=4096)] | None = None
    metadata: dict[str, str] | None = None
    platform: Platform | None = None
    network_policy: NetworkPolicy | None = None
    credential_proxy: CredentialProxy | None = None
    secure_access: bool = False
    volumes: Annotated[list[Volume], Meta(max_length=16)] | None = None
    extensions: Strings | None = None
    lifecycle: dict[str, Any] | None = None


class Renew(Struct, rename="camel"):
    """``POST /sandboxes/{id}/renew-expiration``."""

    expires_at: Annotated[str, Meta(max_length=64)]


class CreateSnapshot(Struct, forbid_unknown_fields=True):
    """``POST /sandboxes/{id}/snapshots``."""

    name: Annotated[str, Meta(min_length=1, max_length=256)] | None = None


MetadataPatch = dict[str, str | None]
"""``PATCH /sandboxes/{id}/metadata``: ``null`` removes a key."""
