"""A small client of LightQ's native protocol, version 1, written from docs/PROTOCOL.md alone.

Blocking, one thread per Client, standard library only. Frames are dicts: encode_frame and decode_frame turn them into
bytes and back; Client, Producer and Subscription hold a session.
"""

import collections
import socket
import struct
import time

# Frame types.
HELLO, CREATE, DESCRIBE, OPEN, PUBLISH, CONFIRM, SUBSCRIBE, CREDIT, DELIVER = 1, 3, 4, 5, 6, 7, 8, 9, 10
HEARTBEAT, GO_AWAY, ERROR, CLOSE, LIST, ALTER, DELETE, PURGE, STATS, FETCH, PRODUCER = 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22

REPLY, IGNORABLE = 1, 2  # flags
SUB, PULL = 1, 2  # kinds of subscription
EARLIEST, LATEST, OFFSET = 1, 2, 3  # where a subscription begins
EVERY_PARTITION = 0xFFFFFFFF

FRAME_LIMIT = 0x16000000  # a length is below it
HELLO_LIMIT = 4096  # a whole frame before hello is accepted
PUBLISH_HEADER = 16 + 15  # fixed header and header section of a publish frame without tags

# number: (name, retriable, fatal)
CODES = {
    0: ("none", False, False),
    1: ("internal", False, False),
    2: ("unsupported_version", False, True),
    3: ("malformed_frame", False, True),
    4: ("frame_too_large", False, True),
    5: ("unknown_frame", False, True),
    6: ("hello_expected", False, True),
    7: ("login_timeout", True, True),
    8: ("not_allowed", False, False),
    9: ("unknown_topic", False, False),
    10: ("unknown_partition", False, False),
    11: ("topic_exists", False, False),
    12: ("invalid_name", False, False),
    13: ("invalid_setting", False, False),
    14: ("unknown_handle", False, True),
    15: ("handle_in_use", False, True),
    16: ("window_exceeded", False, True),
    17: ("stale_epoch", False, False),
    18: ("bad_batch", False, False),
    19: ("batch_too_large", False, False),
    20: ("overflow", True, False),
    21: ("no_space", True, False),
    22: ("quota", True, False),
    23: ("unsupported_level", False, False),
    24: ("offset_out_of_range", False, False),
    25: ("slow_consumer", False, False),
    26: ("draining", True, False),
    27: ("too_many_connections", True, True),
    28: ("too_many_handles", False, False),
    29: ("not_yet", False, False),
    30: ("outcome_unknown", False, False),
    31: ("heartbeat_timeout", True, True),
    32: ("topic_deleted", False, False),
    33: ("foreign_protocol", False, True),
    34: ("paused", True, False),
    35: ("too_many_topics", False, False),
    36: ("storage", True, False),
    37: ("out_of_order", False, False),
    38: ("producer_fenced", False, False),
    39: ("set_aside", False, False),
}


class MalformedError(Exception):
    """Bytes that are not what the protocol says."""


class ConnectionEnded(Exception):
    """The broker closed the connection, or was silent for three heartbeat intervals."""


class CodedError(Exception):
    """An error frame, or a refused batch."""

    def __init__(self, code, detail=""):
        self.code = code
        self.name, self.retriable, self.fatal = CODES.get(code, ("code_%d" % code, False, False))
        self.detail = detail
        super().__init__(self.name + (": " + detail if detail else ""))


# ---------------------------------------------------------------------------------------------------------------------
# CRC-32C


def _crc_table():
    table = []
    for n in range(256):
        for _ in range(8):
            n = n >> 1 ^ (0x82F63B78 if n & 1 else 0)
        table.append(n)
    return tuple(table)


_CRC_TABLE = _crc_table()


def crc32c(data):
    crc = 0xFFFFFFFF
    for b in data:
        crc = crc >> 8 ^ _CRC_TABLE[(crc ^ b) & 0xFF]
    return crc ^ 0xFFFFFFFF


# ---------------------------------------------------------------------------------------------------------------------
# Reading and writing of fields


def uvarint(v):
    out = bytearray()
    while v >= 0x80:
        out.append(v & 0x7F | 0x80)
        v >>= 7
    out.append(v)
    return bytes(out)


def varint(v):
    """Zig-zag, 64 bits."""
    return uvarint(v << 1 if v >= 0 else (-v << 1) - 1)


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def left(self):
        return len(self.data) - self.at

    def take(self, n):
        if n < 0 or n > self.left():
            raise MalformedError("%d bytes wanted, %d left" % (n, self.left()))
        b = bytes(self.data[self.at : self.at + n])
        self.at += n
        return b

    def end(self):
        if self.left():
            raise MalformedError("%d bytes too many" % self.left())

    def number(self, fmt):
        return struct.unpack(">" + fmt, self.take(struct.calcsize(">" + fmt)))[0]

    def uvarint(self, minimal=True):
        v = shift = 0
        while True:
            b = self.take(1)[0]
            v |= (b & 0x7F) << shift
            shift += 7
            if b < 0x80:
                break
            if shift >= 70:
                raise MalformedError("a varint does not end")
        if v >> 64 or minimal and b == 0 and shift > 7:
            raise MalformedError("a varint is too long")
        return v

    def varint(self):
        v = self.uvarint(minimal=False)
        return v >> 1 if not v & 1 else -(v >> 1) - 1


_NUMBERS = {"u8": "B", "u16": "H", "u32": "I", "u64": "Q", "offset": "Q"}
Gap = collections.namedtuple("Gap", "start next reason")


def _read(r, kind):
    if kind in _NUMBERS:
        v = r.number(_NUMBERS[kind])
        if kind == "offset" and v >> 63:
            raise MalformedError("an offset has its highest bit set")
        return v
    if kind == "id":
        return r.take(16)
    if kind == "str":
        try:
            return r.take(r.number("H")).decode("utf-8")
        except UnicodeDecodeError as e:
            raise MalformedError("a string is not UTF-8") from e
    if kind == "gap":
        gap = Gap(_read(r, "offset"), _read(r, "offset"), r.number("B"))
        if gap.next <= gap.start:
            raise MalformedError("a gap is empty")
        return gap
    raise ValueError(kind)


def _write(v, kind):
    if kind in _NUMBERS:
        return struct.pack(">" + _NUMBERS[kind], v)
    if kind == "id":
        if len(v) != 16:
            raise ValueError("a topic id has 16 bytes")
        return v
    if kind == "str":
        b = v.encode("utf-8")
        return struct.pack(">H", len(b)) + b
    if kind == "gap":
        return struct.pack(">QQB", *v)
    raise ValueError(kind)


def _read_section(r, fields, tags):
    """Fields and the tagged fields behind them; unknown tags are skipped."""
    values = {name: _read(r, kind) for name, kind in fields}
    last = -1
    for _ in range(r.uvarint()):
        tag, size = r.uvarint(), r.uvarint()
        if tag <= last or tag > 1 << 31:
            raise MalformedError("tag %d behind tag %d" % (tag, last))
        last = tag
        value = Reader(r.take(size))
        if tag in tags:
            name, kind = tags[tag]
            values[name] = _read(value, kind)
            value.end()
    return values


def _write_section(values, fields, tags):
    out = b"".join(_write(values[name], kind) for name, kind in fields)
    tagged = [(tag, _write(values[name], kind)) for tag, (name, kind) in sorted(tags.items()) if values.get(name)]
    return out + uvarint(len(tagged)) + b"".join(uvarint(tag) + uvarint(len(b)) + b for tag, b in tagged)


# ---------------------------------------------------------------------------------------------------------------------
# Frame types


def _fields(text):
    return tuple(tuple(f.split(":")) for f in text.split())


_SETTINGS = _fields("storage:u8 partitions:u32")
_SETTINGS_TAGS = {
    1: ("overflow", "u8"),
    2: ("ring_bytes", "u64"),
    3: ("max_batch_bytes", "u32"),
    4: ("sync", "u8"),
    5: ("sync_ms", "u32"),
    6: ("retention_bytes", "u64"),
    7: ("retention_ms", "u64"),
    8: ("segment_bytes", "u64"),
}
_HELLO = _fields("min_version:u16 max_version:u16 features:u64 name:str")
_CREATED = _fields("topic_id:id created:u8") + _SETTINGS
_TOPIC = _fields("topic:str")

# (type, is a reply): fields, tagged fields
_SECTIONS = {
    (HELLO, False): (_HELLO, {}),
    (HELLO, True): (_HELLO, {1: ("max_frame_bytes", "u32"), 2: ("max_batch_bytes", "u32"), 3: ("heartbeat_ms", "u32")}),
    (CREATE, False): (_TOPIC + _SETTINGS, _SETTINGS_TAGS),
    (CREATE, True): (_CREATED, _SETTINGS_TAGS),
    (DESCRIBE, False): (_TOPIC, {}),
    (DESCRIBE, True): (_fields("topic_id:id entry_bytes:u16 count:u32") + _SETTINGS, _SETTINGS_TAGS),
    (OPEN, False): (_TOPIC + _fields("partition:u32 epoch:u32 level:u8"), {}),
    (OPEN, True): (
        _fields("topic_id:id partitions:u32 window_bytes:u32 max_batch_bytes:u32 level:u8 next:offset"),
        {},
    ),
    (PUBLISH, False): (_fields("epoch:u32 first:u64 count:u16"), {}),
    (CONFIRM, False): (_fields("epoch:u32 first:u64 count:u32"), {}),
    (SUBSCRIBE, False): (
        _TOPIC + _fields("partition:u32 kind:u8 from:u8 value:u64 credit_bytes:u32 name:str"),
        {},
    ),
    (SUBSCRIBE, True): (_fields("topic_id:id partitions:u32 start:offset high:offset begin:offset"), {}),
    (CREDIT, False): (_fields("bytes:u32"), {}),
    (DELIVER, False): (_fields("start:offset high:offset append_time:u64 count:u16"), {1: ("gap", "gap")}),
    (HEARTBEAT, False): ((), {}),
    (GO_AWAY, False): (_fields("code:u16 drain_ms:u32 reason:str"), {}),
    (ERROR, True): (_fields("code:u16 detail:str"), {1: ("start", "offset"), 2: ("next", "offset")}),
    (CLOSE, False): ((), {}),
    (CLOSE, True): ((), {}),
    (LIST, False): (_fields("after:str limit:u32"), {}),
    (LIST, True): (_fields("count:u32 more:u8"), {}),
    (ALTER, False): (_TOPIC + _SETTINGS, _SETTINGS_TAGS),
    (ALTER, True): (_CREATED, _SETTINGS_TAGS),
    (DELETE, False): (_TOPIC, {}),
    (DELETE, True): ((), {}),
    (PURGE, False): (_TOPIC + _fields("partition:u32"), {}),
    (PURGE, True): (_fields("records:u64"), {}),
    (STATS, False): ((), {}),
    (STATS, True): (_fields("count:u32"), {}),
    (FETCH, False): (
        _TOPIC + _fields("partition:u32 from:u8 value:u64 limit:offset max_bytes:u32 wait_ms:u32"),
        {},
    ),
    (FETCH, True): (
        _fields("start:offset high:offset next:offset append_time:u64 count:u16"),
        {1: ("gap", "gap")},
    ),
    (PRODUCER, False): ((), {}),
    (PRODUCER, True): (_fields("producer_id:u64 producer_epoch:u16"), {}),
}

_CONFIRM_ENTRY = _fields("base_offset:offset code:u16")
_DESCRIBE_ENTRY = _fields(
    "start:offset high:offset next:offset bytes:u64 dropped_unread:u64 subscriptions:u32 publishers:u32 "
    "records_in:u64 bytes_in:u64 records_out:u64 bytes_out:u64 queue_size:u64"
)
_DESCRIBE_FILES = _fields("durable:offset journal_bytes:u64 segments:u32 state:u8 damaged:u32")
_LIST_ENTRY = _fields("topic:str topic_id:id") + _SETTINGS
_STATS_ENTRY = _fields("name:str value:u64")


def _plain(r, fields):
    return {name: _read(r, kind) for name, kind in fields}


def _plain_bytes(values, fields):
    return b"".join(_write(values[name], kind) for name, kind in fields)


def _read_payload(key, values, payload):
    r = Reader(payload)
    count = values.get("count", 0)
    if key in ((PUBLISH, False), (DELIVER, False), (FETCH, True)):
        values["batches"] = split_batches(payload, count)
        return
    entries = []
    if key == (CONFIRM, False):
        if count < 1 or count * 10 != len(payload):
            raise MalformedError("the results do not fill the payload")
        entries = [_plain(r, _CONFIRM_ENTRY) for _ in range(count)]
    elif key == (DESCRIBE, True):
        size = values["entry_bytes"]
        if size < 88 or size * count != len(payload):
            raise MalformedError("the entries do not fill the payload")
        fields = _DESCRIBE_ENTRY + (_DESCRIBE_FILES if size >= 113 else ())
        entries = [_plain(Reader(r.take(size)), fields) for _ in range(count)]
    elif key == (LIST, True):
        for _ in range(count):
            entry = Reader(r.take(r.number("H")))
            entries.append(_read_section(entry, _LIST_ENTRY, _SETTINGS_TAGS))
            entry.end()
    elif key == (STATS, True):
        entries = [_plain(r, _STATS_ENTRY) for _ in range(count)]
    r.end()
    if "count" in values:
        values["entries"] = entries


def _write_payload(key, values):
    if key in ((PUBLISH, False), (DELIVER, False), (FETCH, True)):
        return b"".join(values["batches"])
    entries = values.get("entries", [])
    if key == (CONFIRM, False):
        return b"".join(_plain_bytes(e, _CONFIRM_ENTRY) for e in entries)
    if key == (DESCRIBE, True):
        fields = _DESCRIBE_ENTRY + (_DESCRIBE_FILES if values["entry_bytes"] >= 113 else ())
        return b"".join(_plain_bytes(e, fields).ljust(values["entry_bytes"], b"\0") for e in entries)
    if key == (LIST, True):
        sections = [_write_section(e, _LIST_ENTRY, _SETTINGS_TAGS) for e in entries]
        return b"".join(struct.pack(">H", len(s)) + s for s in sections)
    if key == (STATS, True):
        return b"".join(_plain_bytes(e, _STATS_ENTRY) for e in entries)
    return b""


def decode_frame(data):
    """A whole frame, its length in front, as a dict; None for one that is unknown and ignorable."""
    r = Reader(data)
    length, kind, flags, size, correlation, handle = (r.number(f) for f in ("I", "B", "B", "H", "I", "I"))
    if length < 12 or length >= FRAME_LIMIT or length + 4 != len(data) or size > length - 12:
        raise MalformedError("length %d, header size %d, %d bytes" % (length, size, len(data)))
    key = (kind, bool(flags & REPLY))
    if key not in _SECTIONS:
        if flags & IGNORABLE:
            return None
        raise MalformedError("unknown frame type %d, flags %d" % (kind, flags))
    section = Reader(r.take(size))
    values = _read_section(section, *_SECTIONS[key])
    section.end()
    _read_payload(key, values, r.take(r.left()))
    values.update(type=kind, reply=key[1], correlation=correlation, handle=handle)
    return values


def encode_frame(frame):
    key = (frame["type"], frame.get("reply", False))
    section = _write_section(frame, *_SECTIONS[key])
    payload = _write_payload(key, frame)
    head = struct.pack(
        ">IBBHII",
        12 + len(section) + len(payload),
        key[0],
        (REPLY if key[1] else 0) | (IGNORABLE if key[0] == HEARTBEAT else 0),
        len(section),
        frame.get("correlation", 0),
        frame.get("handle", 0),
    )
    return head + section + payload


# ---------------------------------------------------------------------------------------------------------------------
# Record batches

_BATCH = struct.Struct(">qiibIhiqqqhii")  # 61 bytes
_BATCH_FROM_CRC = 21  # what the CRC covers begins here


class Record:
    """A value with an optional key and headers; None is null. Headers are pairs of str and bytes or None, in order."""

    def __init__(self, value, key=None, headers=(), timestamp=0, offset=None):
        self.value, self.key, self.headers = value, key, list(headers)
        self.timestamp, self.offset = timestamp, offset

    def _content(self):
        return self.value, self.key, self.headers, self.timestamp

    def __eq__(self, other):
        """Equal content; the offset is not content."""
        return isinstance(other, Record) and self._content() == other._content()

    def __repr__(self):
        return "Record(offset=%r, key=%r, value=%r, headers=%r, timestamp=%r)" % (
            self.offset,
            self.key,
            self.value,
            self.headers,
            self.timestamp,
        )


class Batch:
    def __init__(self, records, base_offset=0, leader_epoch=-1, producer_id=-1, producer_epoch=-1, base_sequence=-1):
        self.records, self.base_offset, self.leader_epoch = records, base_offset, leader_epoch
        self.producer_id, self.producer_epoch, self.base_sequence = producer_id, producer_epoch, base_sequence


def _sized(b):
    return varint(-1) if b is None else varint(len(b)) + b


def encode_batch(batch):
    records = batch.records
    if not records:
        raise ValueError("a batch holds at least one record")
    base = records[0].timestamp
    body = bytearray()
    for i, rec in enumerate(records):
        one = b"\0" + varint(rec.timestamp - base) + varint(i) + _sized(rec.key) + _sized(rec.value)
        one += varint(len(rec.headers))
        for key, value in rec.headers:
            one += _sized(key.encode("utf-8")) + _sized(value)
        body += varint(len(one)) + one
    out = bytearray(
        _BATCH.pack(
            batch.base_offset,
            _BATCH.size - 12 + len(body),
            batch.leader_epoch,
            2,
            0,
            0,
            len(records) - 1,
            base,
            max(rec.timestamp for rec in records),
            batch.producer_id,
            batch.producer_epoch,
            batch.base_sequence,
            len(records),
        )
    )
    out += body
    struct.pack_into(">I", out, 17, crc32c(out[_BATCH_FROM_CRC:]))
    return bytes(out)


def decode_batch(data):
    if len(data) < _BATCH.size:
        raise MalformedError("a batch of %d bytes" % len(data))
    (base_offset, length, leader_epoch, magic, crc, attributes, last, base, newest, pid, pepoch, seq, count) = (
        _BATCH.unpack_from(data)
    )
    if length + 12 != len(data) or magic != 2 or count < 1 or last != count - 1:
        raise MalformedError("a damaged batch: length %d, magic %d, count %d" % (length, magic, count))
    if crc != crc32c(data[_BATCH_FROM_CRC:]):
        raise MalformedError("the CRC of the batch at %d is wrong" % base_offset)
    if attributes & 7:
        raise MalformedError("the batch at %d is compressed, codec %d" % (base_offset, attributes & 7))
    if attributes:
        raise MalformedError("the batch at %d has attributes %d" % (base_offset, attributes))

    def sized(r, nullable=True):
        n = r.varint()
        if n == -1 and nullable:
            return None
        return r.take(n)

    r, records = Reader(data), []
    r.take(_BATCH.size)
    for i in range(count):
        one = Reader(r.take(r.varint()))
        if one.take(1) != b"\0":
            raise MalformedError("a record has attributes")
        timestamp, delta = base + one.varint(), one.varint()
        if delta != i:
            raise MalformedError("offset delta %d of record %d" % (delta, i))
        key, value, headers = sized(one), sized(one), []
        n = one.varint()
        if n < 0:
            raise MalformedError("%d headers" % n)
        for _ in range(n):
            name = sized(one, nullable=False)
            try:
                headers.append((name.decode("utf-8"), sized(one)))
            except UnicodeDecodeError as e:
                raise MalformedError("a header's key is not UTF-8") from e
        one.end()
        records.append(Record(value, key, headers, timestamp, base_offset + i))
    r.end()
    return Batch(records, base_offset, leader_epoch, pid, pepoch, seq)


def split_batches(payload, count):
    """The bytes of each of count batches that fill the payload."""
    r, out = Reader(payload), []
    for _ in range(count):
        head = Reader(payload[r.at : r.at + 12])
        head.take(8)
        out.append(r.take(12 + head.number("i")))
    r.end()
    return out


# ---------------------------------------------------------------------------------------------------------------------
# Sessions


class Client:
    """A connection. Its calls block, at most timeout seconds for an answer; heartbeats are sent while they wait.

    A program that is silent for longer between two calls calls heartbeat itself.
    """

    def __init__(self, host, port, timeout=30.0, name="lightq.py"):
        self.timeout = timeout
        self.going_away = None
        self._heartbeat, self._limit = 15.0, HELLO_LIMIT
        self._correlation = self._handle = 0
        self._handles, self._answers = {}, {}
        self._in = bytearray()
        self._sock = socket.create_connection((host, port), timeout)
        self._sent = self._heard = time.monotonic()
        try:
            self.server = self._ask(HELLO, min_version=1, max_version=1, features=0, name=name)
            if self.server["max_version"] != 1:
                raise MalformedError("the broker chose version %d" % self.server["max_version"])
        except BaseException:
            self.disconnect()
            raise
        self._limit = self.server.get("max_frame_bytes", HELLO_LIMIT)
        self._heartbeat = self.server.get("heartbeat_ms", 15000) / 1000

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.disconnect()

    def disconnect(self):
        self._sock.close()

    # Requests about topics.

    def create_topic(self, topic, storage=0, partitions=0, overflow=0, ring_bytes=0, max_batch_bytes=0):
        return self._ask(
            CREATE,
            topic=topic,
            storage=storage,
            partitions=partitions,
            overflow=overflow,
            ring_bytes=ring_bytes,
            max_batch_bytes=max_batch_bytes,
        )

    def describe(self, topic):
        return self._ask(DESCRIBE, topic=topic)

    def list_topics(self):
        after, entries = "", []
        while True:
            page = self._ask(LIST, after=after, limit=0)
            entries += page["entries"]
            if not page["more"]:
                return entries
            after = page["entries"][-1]["topic"]

    def purge(self, topic, partition=EVERY_PARTITION):
        return self._ask(PURGE, topic=topic, partition=partition)["records"]

    def delete(self, topic):
        self._ask(DELETE, topic=topic)

    # Handles.

    def open(self, topic, partition=0, level=0):
        p = Producer(self, self._new_handle(), topic, partition, level)
        p.reopen()
        return p

    def subscribe(self, topic, partition=0, kind=SUB, start=EARLIEST, value=0, credit=4 << 20, name=""):
        s = Subscription(self, self._new_handle())
        self._handles[s.handle] = s
        try:
            s.info = self._ask(
                SUBSCRIBE,
                s.handle,
                topic=topic,
                partition=partition,
                kind=kind,
                value=value,
                credit_bytes=credit,
                name=name,
                **{"from": start},
            )
        except CodedError:
            del self._handles[s.handle]
            raise
        s.position, s.dense = s.info["begin"], kind == SUB
        return s

    def close_handle(self, handle):
        self._ask(CLOSE, handle)
        self._handles.pop(handle, None)

    def heartbeat(self):
        self._send(type=HEARTBEAT)

    # Inside.

    def _new_handle(self):
        self._handle += 1
        return self._handle

    def _send(self, **frame):
        data = encode_frame(frame)
        if len(data) > self._limit:
            raise ValueError("a frame of %d bytes, above the limit of %d" % (len(data), self._limit))
        self._sock.settimeout(self.timeout)
        self._sock.sendall(data)
        self._sent = time.monotonic()

    def _ask(self, kind, handle=0, /, **fields):
        self._correlation += 1
        correlation = self._correlation
        self._send(type=kind, correlation=correlation, handle=handle, **fields)
        self._wait(lambda: correlation in self._answers)
        answer = self._answers.pop(correlation)
        if answer["type"] == ERROR:
            raise CodedError(answer["code"], answer["detail"])
        if answer["type"] != kind:
            raise MalformedError("a reply of type %d to a request of type %d" % (answer["type"], kind))
        return answer

    def _wait(self, done):
        """Takes frames until done() is true."""
        deadline = time.monotonic() + self.timeout
        while not done():
            frame = self._receive(deadline)
            if frame is not None:
                self._take(frame)

    def _receive(self, deadline):
        while True:
            if len(self._in) >= 4:
                length = struct.unpack_from(">I", self._in)[0]
                if length < 12 or length + 4 > self._limit:
                    raise MalformedError("a frame of length %d" % length)
                if len(self._in) >= length + 4:
                    data = bytes(self._in[: length + 4])
                    del self._in[: length + 4]
                    return decode_frame(data)
            now = time.monotonic()
            if now >= deadline:
                raise TimeoutError("no answer within %g s" % self.timeout)
            if now - self._sent >= self._heartbeat:
                self.heartbeat()
                continue
            self._sock.settimeout(max(0.001, min(deadline, self._sent + self._heartbeat) - now))
            try:
                data = self._sock.recv(1 << 16)
            except socket.timeout:
                if time.monotonic() - self._heard > 3 * self._heartbeat:
                    raise ConnectionEnded("nothing was heard for three heartbeat intervals") from None
                continue
            if not data:
                raise ConnectionEnded("the broker closed the connection")
            self._heard = time.monotonic()
            self._in += data

    def _take(self, f):
        if f["type"] == ERROR and CODES.get(f["code"], ("", False, False))[2]:
            self.disconnect()
            raise CodedError(f["code"], f["detail"])
        if f["correlation"]:
            self._answers[f["correlation"]] = f
        elif f["type"] == GO_AWAY:
            self.going_away = f
        elif f["type"] == ERROR and not f["handle"]:
            pass  # about the connection and not fatal: nothing of this version, to be ignored
        elif f["type"] in (DELIVER, CONFIRM, ERROR) and f["handle"] in self._handles:
            self._handles[f["handle"]].take(f)
        elif f["type"] != HEARTBEAT:
            raise MalformedError("a frame of type %d about handle %d" % (f["type"], f["handle"]))


class Producer:
    """A handle that is open for publishing."""

    def __init__(self, client, handle, topic, partition, level):
        self.client, self.handle, self.topic, self.partition, self.level = client, handle, topic, partition, level
        self.epoch, self.number, self.unconfirmed = 0, 0, 0
        self.sizes, self.results = collections.deque(), []

    def reopen(self):
        """Opens the handle with the next epoch, as after a refusal."""
        new = self.handle not in self.client._handles
        self.client._handles[self.handle] = self
        self.epoch += 1
        try:
            self.info = self.client._ask(
                OPEN, self.handle, topic=self.topic, partition=self.partition, epoch=self.epoch, level=self.level
            )
        except CodedError:
            if new:
                del self.client._handles[self.handle]
            raise
        self.number = 0

    def publish(self, *batches):
        """Publishes lists of records, a batch each; returns their base offsets when all are confirmed.

        Raises the first refusal after the last result has come; the handle is then to be opened again.
        """
        waiting = collections.deque(encode_batch(Batch(list(b))) for b in batches)
        first, total = len(self.results), len(waiting)
        window = self.info["window_bytes"]
        while waiting:
            self.client._wait(lambda: self.unconfirmed < window)
            frame, room = [], self.client._limit - PUBLISH_HEADER
            while waiting and self.unconfirmed < window and len(waiting[0]) <= room and len(frame) < 65535:
                b = waiting.popleft()
                frame.append(b)
                room -= len(b)
                self.unconfirmed += len(b)
                self.sizes.append((self.epoch, self.number + len(frame) - 1, len(b)))
            if not frame:
                raise ValueError("a batch of %d bytes does not fit a frame" % len(waiting[0]))
            self.client._send(
                type=PUBLISH, handle=self.handle, epoch=self.epoch, first=self.number, count=len(frame), batches=frame
            )
            self.number += len(frame)
        self.client._wait(lambda: len(self.results) >= first + total)
        results, self.results = self.results[first:], []
        for code, _ in results:
            if code:
                raise CodedError(code)
        return [base for _, base in results]

    def take(self, f):
        if f["type"] != CONFIRM:
            raise CodedError(f["code"], f["detail"])
        for i, entry in enumerate(f["entries"]):
            if not self.sizes or self.sizes[0][:2] != (f["epoch"], f["first"] + i):
                raise MalformedError("a result of batch %d of epoch %d" % (f["first"] + i, f["epoch"]))
            self.unconfirmed -= self.sizes.popleft()[2]
            self.results.append((entry["code"], entry["base_offset"]))

    def close(self):
        self.client.close_handle(self.handle)


class Subscription:
    """A handle that records are delivered on; iterating it gives them, and grants credit for what was taken."""

    def __init__(self, client, handle):
        self.client, self.handle = client, handle
        self.frames, self.gaps, self.error = collections.deque(), [], None
        self.info, self.position, self.dense = None, 0, True

    def take(self, f):
        if f["type"] == ERROR:
            self.error = CodedError(f["code"], f["detail"])
        else:
            self.frames.append(f)

    def __iter__(self):
        while True:
            self.client._wait(lambda: self.frames or self.error)
            if not self.frames:
                raise self.error
            f = self.frames.popleft()
            gap = f.get("gap")
            if gap:
                self.gaps.append(gap)
                self.position = max(self.position, gap.next)
            for data in f["batches"]:
                batch = decode_batch(data)
                if self.dense and batch.base_offset > self.position:
                    raise MalformedError("offset %d without a gap behind %d" % (batch.base_offset, self.position))
                for rec in batch.records:
                    if not self.dense or rec.offset >= self.position:
                        self.position = rec.offset + 1
                        yield rec
            taken = sum(len(data) for data in f["batches"])
            if taken and not self.error:
                self.client._send(type=CREDIT, handle=self.handle, bytes=taken)

    def close(self):
        self.client.close_handle(self.handle)
