"""Plans as Chakra execution traces (schema 0.0.4), which ASTRA-sim runs: a file for each rank.

Needs the package ``protobuf``.  The schema's part that is used is stated here, with the field numbers of
mlcommons/chakra, et_def.proto; a file is its metadata and then its nodes, each with its length before it.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Sequence
from typing import Any

from strata.errors import InvalidArgument, writing
from strata.plan.interchange import messages
from strata.plan.plan import Plan

VERSION = "0.0.4"
NODE_TYPES = {messages.CALC: 4, messages.SEND: 5, messages.RECV: 6}  # COMP_NODE, COMM_SEND_NODE, COMM_RECV_NODE
PACKAGE = "ChakraProtoMsg"
# Fields: name, number, type
ATTRIBUTE = (
    ("name", 1, "string"), ("doc_string", 2, "string"), ("int32_val", 7, "int32"), ("int64_val", 9, "int64"),
    ("uint64_val", 13, "uint64"), ("bool_val", 27, "bool"), ("string_val", 29, "string"),
)  # fmt: skip
METADATA = (("version", 1, "string"), ("attr", 2, "*AttributeProto"))
NODE = (
    ("id", 1, "uint64"), ("name", 2, "string"), ("type", 3, "int32"), ("ctrl_deps", 4, "*uint64"),
    ("data_deps", 5, "*uint64"), ("start_time_micros", 6, "uint64"), ("duration_micros", 7, "uint64"),
    ("attr", 10, "*AttributeProto"),
)  # fmt: skip


@functools.cache
def _classes() -> tuple[Any, Any, Any]:
    """Of AttributeProto, GlobalMetadata, Node, in a pool of their own."""
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ImportError as error:
        raise InvalidArgument('Chakra traces need the package protobuf: pip install "strata[chakra]"') from error
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="strata_et_def.proto", package=PACKAGE, syntax="proto3")
    for message, fields in (("AttributeProto", ATTRIBUTE), ("GlobalMetadata", METADATA), ("Node", NODE)):
        made = file.message_type.add(name=message)
        if message == "AttributeProto":
            made.oneof_decl.add(name="value")
        for name, number, kind in fields:
            one = made.field.add(name=name, number=number, label=kinds.LABEL_OPTIONAL)
            if kind.startswith("*"):
                one.label, kind = kinds.LABEL_REPEATED, kind[1:]
            if kind[0].isupper():
                one.type, one.type_name = kinds.TYPE_MESSAGE, f".{PACKAGE}.{kind}"
            else:
                one.type = getattr(kinds, f"TYPE_{kind.upper()}")
            if name.endswith("_val"):
                one.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = [pool.FindMessageTypeByName(f"{PACKAGE}.{n}") for n in ("AttributeProto", "GlobalMetadata", "Node")]
    attribute, metadata, node = (message_factory.GetMessageClass(each) for each in found)
    return attribute, metadata, node


def write(plans: Sequence[Plan], path: str | os.PathLike[str], *, gbps: float = 10.0) -> list[str]:
    """Writes the plans of all members: of "x.et" x.0.et, x.1.et, ..., whose names it returns; ``messages`` says what
    becomes of a unit.

    ``gbps``: bytes that a core reads and writes, by which computations are microseconds, rounded up.  InvalidArgument
    without protobuf, and for what cannot be said: fewer plans than members, mailboxes.
    """
    if not 0 < gbps < 1e9:
        raise InvalidArgument(f"gbps is {gbps}: bytes of a core by nanoseconds, more than 0, are expected")
    _, metadata, _ = _classes()
    ranks = messages.ranks(plans, "Chakra traces")
    stem = os.fspath(path).removesuffix(".et")
    names = [f"{stem}.{rank}.et" for rank in range(len(ranks))]
    for name, nodes in zip(names, ranks, strict=True):
        with writing(name), open(name, "wb") as out:
            for message in (metadata(version=VERSION), *_nodes(nodes, names.index(name), gbps)):
                data = message.SerializeToString(deterministic=True)
                out.write(_varint(len(data)) + data)
    return names


def _nodes(nodes: list[messages.Node], rank: int, gbps: float) -> Iterator[Any]:
    attribute, _, kind = _classes()
    for index, node in enumerate(nodes):
        attrs: list[tuple[str, str, Any]] = [("is_cpu_op", "bool_val", False)]
        made = kind(id=index, name=node.name, type=NODE_TYPES[node.kind], data_deps=node.after)
        if node.kind == messages.CALC:
            made.duration_micros = int(-(-node.nbytes // (gbps * 1e3)))
            attrs += [("num_ops", "int64_val", 0), ("tensor_size", "uint64_val", node.nbytes)]
        else:
            ends = (rank, node.peer) if node.kind == messages.SEND else (node.peer, rank)
            attrs += [("comm_src", "int32_val", ends[0]), ("comm_dst", "int32_val", ends[1])]
            attrs += [("comm_tag", "int32_val", node.tag), ("comm_size", "int64_val", node.nbytes)]
        attrs.append(("core", "int32_val", node.cpu))
        made.attr.extend(attribute(name=name, **{field: value}) for name, field, value in attrs)
        yield made


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])
