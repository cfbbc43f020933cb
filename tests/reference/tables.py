"""Small files of Parquet and Arrow with the same records as a JSONL file, by pyarrow (PyPI, 26.0.1).

    python tests/reference/tables.py

`types`: every type that a record may have. `chats`: conversations, of which each has one row. `refused`: a column of
bytes whose name a record knows. `unreadable`: only such ones. `lies`: a row group that says 8 rows and has 9. `large`:
a small file with 800 GB of text. `outside.parquet` is `types.parquet` with some other bytes, as test_parquet has found
them: places outside a dictionary, which Arrow's reader does not check. Running it again with the same version gives the same bytes.
"""
import json
import math
import pathlib

import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq

folder = pathlib.Path(__file__).parent / "data" / "tables"
folder.mkdir(exist_ok=True)


def write_lines(name, rows):
    """As Tessera writes a row: members without a value are left out, but those of structures are null."""
    with open(folder / f"{name}.jsonl", "w", encoding="utf-8", newline="\n") as out:
        for row in rows:
            row = {key: value for key, value in row.items() if value is not None}
            out.write(json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n")


def write_tables(name, table, rows_of_group, **options):
    pq.write_table(table, folder / f"{name}.parquet", row_group_size=rows_of_group, **options)
    with ipc.new_file(str(folder / f"{name}.arrow"), table.schema) as out:
        out.write_table(table, max_chunksize=rows_of_group)
    with ipc.new_stream(str(folder / f"{name}_stream.arrow"), table.schema) as out:
        out.write_table(table, max_chunksize=rows_of_group)


def types():
    message = pa.struct([("role", pa.string()), ("content", pa.string()), ("weight", pa.float64())])
    schema = pa.schema([
        ("text", pa.string()), ("large", pa.large_string()), ("kind", pa.dictionary(pa.int8(), pa.string())),
        ("messages", pa.list_(message)), ("tags", pa.large_list(pa.large_string())), ("pair", pa.list_(pa.int16(), 2)),
        ("truth", pa.bool_()), ("i8", pa.int8()), ("i64", pa.int64()), ("u8", pa.uint8()), ("u64", pa.uint64()),
        ("f32", pa.float32()), ("f64", pa.float64()), ("nothing", pa.null()),
        ("deep", pa.list_(pa.struct([("of", pa.list_(pa.list_(pa.int32())))])))])
    rows = []
    for i in range(23):
        rows.append({
            "text": ['quote " backslash \\ tab \t', "line\nline\r", "é 文 🙂 \x01\x7f", ""][i % 4],
            "large": None if i % 5 == 0 else "long " * i,
            "kind": ["a", "b", None][i % 3],
            "messages": [{"role": "user", "content": f"{i}?", "weight": None},
                         {"role": "assistant", "content": None if i == 7 else f"{i}!", "weight": i / 2 + 0.25}],
            "tags": None if i % 4 == 1 else ["x", None, "y"][:i % 4],
            "pair": [i, -i],
            "truth": [True, False, None][i % 3],
            "i8": -128 + i, "i64": -2**63 + i, "u8": 255 - i, "u64": 2**64 - 1 - i,
            "f32": i / 4 + 0.5, "f64": math.sqrt(i) + 1e-9, "nothing": None,
            "deep": [{"of": [[i], [], [1, 2]]}, {"of": None}] if i % 2 else []})
    table = pa.Table.from_pylist(rows, schema=schema)
    write_lines("types", rows)
    table = table.append_column("photo", pa.array([b"\x00\xff"] * len(rows)))
    table = table.append_column("embedding", pa.array([[0.5, 1.5]] * len(rows), pa.list_(pa.float32())))
    write_tables("types", table, 7, compression="zstd", data_page_version="2.0", store_schema=True)


def chats():
    rows = []
    for i in range(60):
        answer = " ".join(str(i + k) for k in range(i % 7 + 1))
        rows.append({"messages": [{"role": "user", "content": f"Count from {i}"},
                                  {"role": "assistant", "content": answer}]})
    table = pa.Table.from_pylist(rows)
    write_lines("chats", rows)
    write_tables("chats", table, 9)


def refused():
    pq.write_table(pa.table({"text": ["a"], "image": [b"\x89PNG"]}), folder / "refused.parquet")
    pq.write_table(pa.table({"photo": [b"\x89PNG"]}), folder / "unreadable.parquet")


def hostile():
    # The rows of the first row group, 9, in its metadata: field 3 of Thrift's compact protocol, an i64 in zigzag.
    whole = (folder / "chats.parquet").read_bytes()
    metadata = pq.read_metadata(folder / "chats.parquet")
    size = metadata.row_group(0).total_byte_size
    varint = bytearray()
    value = size * 2
    while value > 127:
        varint.append(value & 127 | 128)
        value >>= 7
    varint.append(value)
    field = b"\x16" + bytes(varint) + b"\x16"
    at = whole.index(field + b"\x12", len(whole) - int.from_bytes(whole[-8:-4], "little") - 8) + len(field)
    (folder / "lies.parquet").write_bytes(whole[:at] + b"\x10" + whole[at + 1:])
    # A text of 4 MB in a dictionary, 200,000 times: 800 GB of text.
    table = pa.table({"text": pa.array(["x" * 4_000_000]).dictionary_encode().take(pa.array([0] * 200_000))})
    pq.write_table(table.cast(pa.schema([("text", pa.dictionary(pa.int32(), pa.string()))])),
                   folder / "large.parquet", compression="zstd", store_schema=False, write_statistics=False)


types()
chats()
refused()
hostile()
