"""Tests of lightq.py: against the golden frames, and against a broker at LIGHTQ_ADDR (host:port) if that is set."""

import contextlib
import glob
import itertools
import os
import unittest
import uuid

import lightq
from lightq import CodedError, MalformedError, Record

GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "codec", "testdata", "golden")
ADDR = os.environ.get("LIGHTQ_ADDR", "")

TOPIC_ID = bytes.fromhex("4c51000102030405060708090a0b0c0d")
SETTINGS = {"overflow": 3, "ring_bytes": 64 << 20, "max_batch_bytes": 1048588}

# What decoding is to give, at least.
EXPECT = {
    "alter": {"topic": "orders", "storage": 0, "partitions": 8, "ring_bytes": 128 << 20},
    "alter_reply": {"topic_id": TOPIC_ID, "created": 0, "partitions": 8, "overflow": 3, "ring_bytes": 128 << 20},
    "close": {"correlation": 6, "handle": 2},
    "close_reply": {"correlation": 6, "handle": 2, "reply": True},
    "confirm": {"epoch": 1, "first": 0, "entries": [{"base_offset": 0, "code": 0}]},
    "confirm_refused": {
        "first": 1,
        "entries": [
            {"base_offset": 2, "code": 0},
            {"base_offset": 0, "code": 20},
            {"base_offset": 0, "code": 17},
        ],
    },
    "create": {"topic": "orders", "storage": 1, "partitions": 1, "correlation": 2},
    "create_reply": {"topic_id": TOPIC_ID, "created": 1, "storage": 1, "overflow": 1, "ring_bytes": 64 << 20},
    "create_tags": dict(SETTINGS, topic="orders", partitions=4),
    "credit": {"handle": 2, "bytes": 85},
    "delete": {"topic": "orders", "correlation": 11},
    "delete_reply": {"correlation": 11, "reply": True},
    "create_file": {
        "topic": "ledger", "storage": 2, "partitions": 2, "ring_bytes": 16 << 20, "sync": 2, "sync_ms": 5,
        "retention_bytes": 1 << 40, "retention_ms": (1 << 64) - 1, "segment_bytes": 64 << 20,
    },
    "deliver": {"handle": 2, "start": 0, "high": 2, "append_time": 1700000000002, "count": 1},
    "deliver_gap": {"start": 512, "append_time": 0, "count": 0, "gap": (2, 512, 1), "batches": []},
    "deliver_purged": {"start": 1024, "high": 1025, "count": 1, "gap": (600, 1024, 3)},
    "describe": {"topic": "orders", "correlation": 3},
    "describe_reply": dict(SETTINGS, topic_id=TOPIC_ID, entry_bytes=113, count=2, storage=1, partitions=4),
    "error": {"correlation": 7, "code": 9, "detail": "there is no topic orders"},
    "error_deleted": {"handle": 2, "code": 32, "detail": "topic orders was deleted"},
    "error_fatal": {"correlation": 0, "handle": 0, "code": 3, "detail": ""},
    "error_range": {"code": 24, "detail": "offset 99 is not kept", "start": 100, "next": 200},
    "fetch": {"topic": "orders", "partition": 1, "from": 3, "value": 2, "limit": 0, "max_bytes": 1 << 20, "wait_ms": 500},
    "fetch_time": {"from": 4, "value": 1700000000000, "limit": 4096, "max_bytes": 65536, "wait_ms": 0},
    "fetch_reply": {"start": 0, "high": 2, "next": 2, "append_time": 1700000000002, "count": 1},
    "fetch_reply_gap": {"high": 900, "next": 512, "count": 0, "gap": (2, 512, 5), "batches": []},
    "producer": {"correlation": 14},
    "producer_reply": {"producer_id": 1000, "producer_epoch": 0},
    "error_handle": {"handle": 2, "code": 25},
    "go_away": {"code": 26, "drain_ms": 5000, "reason": "the broker is stopping"},
    "heartbeat": {"type": lightq.HEARTBEAT, "correlation": 0, "handle": 0},
    "hello": {"min_version": 1, "max_version": 1, "features": 0, "name": "example/1"},
    "hello_reply": {"name": "lightq", "max_frame_bytes": 4259840, "max_batch_bytes": 1048588, "heartbeat_ms": 15000},
    "list": {"after": "", "limit": 0},
    "list_after": {"after": "orders", "limit": 100},
    "list_reply": {"count": 2, "more": 1},
    "open": {"topic": "orders", "partition": 0, "epoch": 1, "level": 2, "handle": 1},
    "open_reply": {"topic_id": TOPIC_ID, "window_bytes": 4 << 20, "max_batch_bytes": 1048588, "level": 2, "next": 0},
    "publish": {"handle": 1, "epoch": 1, "first": 0, "count": 1},
    "purge": {"topic": "orders", "partition": 1},
    "purge_all": {"topic": "orders", "partition": lightq.EVERY_PARTITION},
    "purge_reply": {"records": 512},
    "stats": {"correlation": 12},
    "stats_reply": {"count": 8},
    "subscribe": {"topic": "orders", "kind": 1, "from": 1, "value": 0, "credit_bytes": 4 << 20, "name": ""},
    "subscribe_offset": {"partition": 3, "kind": 2, "from": 3, "value": 4096, "name": "billing"},
    "subscribe_reply": {"topic_id": TOPIC_ID, "partitions": 1, "start": 0, "high": 2, "begin": 0},
}

T = 1700000000000
HELLO_WORLD = [Record(b"hello", timestamp=T), Record(b"world", timestamp=T + 1)]
BATCHES = {
    "batch_value": HELLO_WORLD,
    "batch_headers": [
        Record(b"v", b"k", [("trace", b"\x01\x02"), ("null", None), ("", b"")], T),
        Record(None, None, [], T - 1000),
        Record(b"", b"", [], T + 100),
        Record(b"value alone", None, [], T + 100),
    ],
    "batch_idempotent": [Record(b"once", timestamp=T)],
}


def golden(name):
    with open(os.path.join(GOLDEN, name + ".hex"), encoding="utf-8") as f:
        return bytes.fromhex("".join(line.split("#", 1)[0] for line in f))


class GoldenTest(unittest.TestCase):
    def test_files_are_known(self):
        names = {os.path.basename(p)[: -len(".hex")] for p in glob.glob(os.path.join(GOLDEN, "*.hex"))}
        self.assertTrue(names)
        self.assertEqual(set(EXPECT) | set(BATCHES), names)

    def test_frames(self):
        for name, expect in EXPECT.items():
            with self.subTest(name):
                data = golden(name)
                frame = lightq.decode_frame(data)
                self.assertEqual(expect, {k: frame.get(k) for k in expect})
                self.assertEqual(data.hex(), lightq.encode_frame(frame).hex())

    def test_frames_are_read_to_their_end(self):
        for name in EXPECT:
            with self.subTest(name):
                data = golden(name)
                for bad in (data[:-1], data + b"\0"):
                    resized = (len(bad) - 4).to_bytes(4, "big") + bad[4:]
                    for b in (bad, resized):
                        with self.assertRaises(MalformedError):
                            lightq.decode_frame(b)

    def test_tables(self):
        entries = lightq.decode_frame(golden("describe_reply"))["entries"]
        self.assertEqual([0, 512], [e["start"] for e in entries])
        self.assertEqual([0, 256], [e["queue_size"] for e in entries])
        entries = lightq.decode_frame(golden("list_reply"))["entries"]
        self.assertEqual([("events", 2), ("orders", 3)], [(e["topic"], e["overflow"]) for e in entries])
        entries = lightq.decode_frame(golden("stats_reply"))["entries"]
        self.assertIn({"name": "uptime_seconds", "value": 3600}, entries)

    def test_batches(self):
        for name, records in BATCHES.items():
            with self.subTest(name):
                data = golden(name)
                batch = lightq.decode_batch(data)
                self.assertEqual(records, batch.records)
                self.assertEqual(data.hex(), lightq.encode_batch(batch).hex())
        batch = lightq.decode_batch(golden("batch_idempotent"))
        self.assertEqual((77, 3, 1000), (batch.producer_id, batch.producer_epoch, batch.base_sequence))

    def test_batches_in_frames(self):
        for name in ("publish", "deliver"):
            (data,) = lightq.decode_frame(golden(name))["batches"]
            self.assertEqual(HELLO_WORLD, lightq.decode_batch(data).records)
        (data,) = lightq.decode_frame(golden("deliver_purged"))["batches"]
        self.assertEqual([1024], [r.offset for r in lightq.decode_batch(data).records])

    def test_damage_is_noticed(self):
        data = bytearray(golden("batch_value"))
        data[-2] ^= 1
        with self.assertRaises(MalformedError):
            lightq.decode_batch(bytes(data))

    def test_crc(self):
        self.assertEqual(0xE3069283, lightq.crc32c(b"123456789"))

    def test_varints(self):
        for v in (0, -1, 1, 63, -64, 64, 300, -1000, (1 << 63) - 1, -1 << 63):
            self.assertEqual(v, lightq.Reader(lightq.varint(v)).varint())

    def test_unknown_tag_is_skipped(self):
        data = golden("heartbeat")[:16] + bytes.fromhex("01 7f 02 abcd")
        data = (len(data) - 4).to_bytes(4, "big") + data[4:6] + b"\0\5" + data[8:]
        self.assertEqual(lightq.HEARTBEAT, lightq.decode_frame(data)["type"])


@unittest.skipUnless(ADDR, "LIGHTQ_ADDR is not set")
class BrokerTest(unittest.TestCase):
    def setUp(self):
        self.client = self.connect()
        self.topic = "pyclient-" + uuid.uuid4().hex

    def connect(self):
        host, port = ADDR.rsplit(":", 1)
        client = lightq.Client(host.strip("[]"), int(port))
        self.addCleanup(client.disconnect)
        return client

    @contextlib.contextmanager
    def refused(self, name):
        with self.assertRaises(CodedError) as caught:
            yield
        self.assertEqual(name, caught.exception.name)

    def batches(self):
        return [
            [Record(b"one", b"key", [("trace", b"\x01\x02"), ("null", None), ("", b"")], T)],
            [Record(None, None, [], T), Record(b"", b"", [], T - 5), Record(b"", None, [], T + 7)],
            [Record(bytes([i]) * 1000, b"%d" % i, [("ключ", "значение".encode())], T + i) for i in range(100)],
        ]

    def test_publish_and_read_back(self):
        c, batches = self.client, self.batches()
        want = [rec for batch in batches for rec in batch]
        self.assertEqual(1, c.create_topic(self.topic, storage=1, partitions=2)["created"])
        self.assertEqual(0, c.create_topic(self.topic, storage=1, partitions=2)["created"])
        producer = c.open(self.topic, partition=1)
        self.assertEqual(0, producer.info["next"])
        self.assertEqual([0, 1], producer.publish(*batches[:2]))
        self.assertEqual([4], producer.publish(batches[2]))
        self.assertEqual(0, producer.unconfirmed)

        # Little credit, so that reading on needs what iterating grants.
        reader = self.connect().subscribe(self.topic, partition=1, credit=100)
        got = list(itertools.islice(reader, len(want)))
        self.assertEqual(want, got)
        self.assertEqual(list(range(len(want))), [rec.offset for rec in got])
        self.assertEqual([], reader.gaps)

        # From inside a batch, and what is published later.
        inside = c.subscribe(self.topic, partition=1, start=lightq.OFFSET, value=50)
        records = iter(inside)
        got = list(itertools.islice(records, len(want) - 50))
        self.assertEqual(list(range(50, len(want))), [rec.offset for rec in got])
        self.assertEqual([len(want)], producer.publish([Record(b"later", timestamp=T)]))
        self.assertEqual((len(want), b"later"), [(r.offset, r.value) for r in itertools.islice(records, 1)][0])

        entry = c.describe(self.topic)["entries"][1]
        self.assertEqual((0, len(want) + 1, len(want) + 1), (entry["start"], entry["high"], entry["next"]))
        self.assertEqual((2, 1), (entry["subscriptions"], entry["publishers"]))
        inside.close()
        producer.close()

    def test_many_batches_of_one_call(self):
        """More than a window and a frame hold, read while nothing else is asked."""
        c = self.client
        c.create_topic(self.topic)
        producer = c.open(self.topic)
        batches = [[Record(bytes(100000), timestamp=T)] for _ in range(60)]
        self.assertEqual(list(range(60)), producer.publish(*batches))
        got = list(itertools.islice(c.subscribe(self.topic, credit=1 << 20), 60))
        self.assertEqual(list(range(60)), [rec.offset for rec in got])

    def test_group(self):
        c = self.client
        c.create_topic(self.topic)
        c.open(self.topic).publish([Record(b"a", timestamp=T)], [Record(b"b", timestamp=T)])
        member = c.subscribe(self.topic, kind=lightq.PULL, name="workers")
        self.assertEqual([b"a", b"b"], [rec.value for rec in itertools.islice(member, 2)])
        member.close()
        self.assertEqual(2, c.subscribe(self.topic, kind=lightq.PULL, name="workers").info["begin"])

    def test_refused_batch_and_reopen(self):
        c = self.client
        c.create_topic(self.topic, max_batch_bytes=1024)
        producer = c.open(self.topic)
        with self.refused("batch_too_large"):
            producer.publish([Record(bytes(2000), timestamp=T)], [Record(b"behind", timestamp=T)])
        with self.refused("stale_epoch"):
            producer.publish([Record(b"behind", timestamp=T)])
        producer.reopen()
        self.assertEqual([0], producer.publish([Record(b"again", timestamp=T)]))

    def test_administration(self):
        c = self.client
        c.create_topic(self.topic)
        self.assertIn(self.topic, [e["topic"] for e in c.list_topics()])
        producer = c.open(self.topic)
        producer.publish([Record(b"x", timestamp=T)] * 3)
        self.assertEqual(3, c.purge(self.topic))
        sub = c.subscribe(self.topic, start=lightq.OFFSET, value=1)
        self.assertEqual([3], producer.publish([Record(b"y", timestamp=T)]))
        self.assertEqual([3], [rec.offset for rec in itertools.islice(sub, 1)])
        self.assertEqual([(1, 3)], [gap[:2] for gap in sub.gaps])
        c.delete(self.topic)
        with self.refused("topic_deleted"):
            next(iter(sub))
        with self.refused("topic_deleted"):
            producer.publish([Record(b"z", timestamp=T)])
        sub.close()
        producer.close()

    def test_errors(self):
        c = self.client
        with self.refused("invalid_name"):
            c.create_topic("no spaces")
        with self.refused("unknown_topic"):
            c.describe(self.topic)
        with self.refused("unknown_topic"):
            c.open(self.topic)
        with self.refused("unknown_topic"):
            c.subscribe(self.topic)
        with self.refused("invalid_setting"):  # the broker of this test has no data directory
            c.create_topic(self.topic, storage=2)
        c.heartbeat()
        c.create_topic(self.topic)
        with self.refused("unknown_partition"):
            c.open(self.topic, partition=1)
        with self.refused("topic_exists"):
            c.create_topic(self.topic, partitions=3)
        with self.refused("offset_out_of_range"):
            c.subscribe(self.topic, start=lightq.OFFSET, value=1)
        with self.refused("unknown_handle"):  # fatal
            c.close_handle(999)


if __name__ == "__main__":
    unittest.main()
