"""The SQL of files' metadata, and of the bytes that tenants keep; see :mod:`sloserve.fleet.store.database`.

Each tenant has a row with the bytes of its files, which is changed with each file that is added, reserved or deleted. A
change of that row also locks out all others that would change what its tenant has.
"""

from typing import Any, Final

from sloserve.fleet.store.database import Session
from sloserve.fleet.store.records import File
from sloserve.fleet.store.request_sql import RESULT_BYTES

LEAST_BYTES: Final = 4_096
"""A small file counts as this many bytes in its tenant's quota: its metadata takes them anyway."""
RESERVED: Final = "reserved"
"""Purpose of a file with bytes that are still being received."""
KEPT: Final = f"purpose <> '{RESERVED}'"

FILES: Final = "SELECT id, tenant, name, purpose, bytes, created_s, expires_s FROM file"
DELETE_FILE: Final = "DELETE FROM file WHERE id = :id AND tenant = :tenant RETURNING bytes"
COUNT_BYTES: Final = """
    INSERT INTO tenant_files (tenant, bytes) VALUES (:tenant, :bytes)
    ON CONFLICT (tenant) DO UPDATE SET bytes = tenant_files.bytes + excluded.bytes"""
RECOUNT_BYTES: Final = """
    UPDATE tenant_files SET bytes = (
        SELECT coalesce(sum(CASE WHEN f.bytes < :least THEN :least ELSE f.bytes END), 0) FROM file f
        WHERE f.tenant = :tenant)
    WHERE tenant = :tenant"""
ADD_FILE: Final = """
    INSERT INTO file (id, tenant, name, purpose, bytes, created_s, expires_s)
    VALUES (:id, :tenant, :name, :purpose, :bytes, store_now(),
        store_now() + CAST(:expires_after_s AS double precision))
    ON CONFLICT (id) DO NOTHING"""
TAKE_BYTES: Final = f"""
    UPDATE tenant_files SET bytes = bytes + :more
    WHERE tenant = :tenant AND (:more <= 0 OR bytes + :more + ({RESULT_BYTES}) <= :most)"""
RESIZE: Final = f"UPDATE file SET bytes = :bytes WHERE id = :id AND bytes = :before AND NOT {KEPT}"
KEEP: Final = f"""
    UPDATE file SET purpose = :purpose, name = :name, created_s = store_now(),
        expires_s = store_now() + CAST(:expires_after_s AS double precision)
    WHERE id = :id AND NOT {KEPT}"""


def add_file(session: Session, file: File, expires_after_s: float | None) -> None:
    """Add a file's row and count its bytes, unless it is there."""
    if session.change(ADD_FILE, **described(file), purpose=file.purpose, expires_after_s=expires_after_s):
        count_bytes(session, file.tenant, max(file.bytes, LEAST_BYTES))


def described(file: File) -> dict[str, Any]:
    """Return the values of :data:`ADD_FILE` that are the file's own."""
    return {"id": file.id, "tenant": file.tenant, "name": file.name, "bytes": file.bytes}


def count_bytes(session: Session, tenant: str, more: int) -> None:
    """Add to the bytes of a tenant's files; with 0 this only locks their count."""
    session.change(COUNT_BYTES, tenant=tenant, bytes=more)


def take_bytes(session: Session, tenant: str, more: int, most: int) -> bool:
    """Add to the bytes of a tenant's files unless files and results would be above ``most``; return whether it did."""
    count_bytes(session, tenant, 0)
    return session.change(TAKE_BYTES, tenant=tenant, more=more, most=most) > 0
