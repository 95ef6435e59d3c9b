"""What Perfetto's trace processor makes of a trace in Chrome's JSON, in sqlite: the same tables, by its rules.

It stands in for the real one where that cannot be had, so that a trace can be asked the same questions anywhere.  An
event with a duration is a slice of its thread's track, below the one that it lies in; one that lies in another only
in part is dropped and counted; an arrow's ends go to the last slice that has begun there, and an end without one is
counted.
"""

import gzip
import json
import sqlite3

TABLES = """
create table process (upid integer primary key, pid int, name text);
create table thread (utid integer primary key, upid int, tid int, name text);
create table thread_track (id integer primary key, utid int);
create table process_counter_track (id integer primary key, upid int, name text);
create table slice (id integer primary key, ts int, dur int, track_id int, category text, name text, depth int,
                    parent_id int, arg_set_id int);
create table flow (id integer primary key, slice_out int, slice_in int);
create table counter (id integer primary key, ts int, track_id int, value real);
create table stats (name text, value int, severity text);
"""


def ns(us):
    return int(us * 1000)


class Rules:
    def __init__(self, path):
        data = path.read_bytes()
        events = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)["traceEvents"]
        self.db = sqlite3.connect(":memory:")
        self.db.executescript(TABLES)
        self.args, self.upids, self.utids, self.counters = [], {}, {}, {}
        self.wrong = {"json_parser_failure": 0, "slice_drop_overlapping_complete_event": 0, "flow_without_direction": 0}
        self.db.create_function("extract_arg", 2, self._arg)
        for event in events:
            if event["ph"] == "M":
                self._named(event)
        self._timed([e for e in events if e["ph"] in "Xsf"])
        for event in events:
            if event["ph"] == "C":
                self._counter(event)
        self.db.executemany("insert into stats values (?, ?, 'error')", self.wrong.items())

    def __call__(self, sql):
        return self.db.execute(sql).fetchall()

    def _arg(self, at, key):
        found = self.args[at]
        for part in key.split("."):
            found = found.get(part) if isinstance(found, dict) else None
        return found

    def _process(self, pid):
        if pid not in self.upids:
            self.upids[pid] = self.db.execute("insert into process (pid) values (?)", (pid,)).lastrowid
        return self.upids[pid]

    def _thread(self, pid, tid):
        if (pid, tid) not in self.utids:
            row = self.db.execute("insert into thread (upid, tid) values (?, ?)", (self._process(pid), tid))
            self.utids[pid, tid] = row.lastrowid
            self.db.execute("insert into thread_track values (?, ?)", (row.lastrowid, row.lastrowid))
        return self.utids[pid, tid]

    def _named(self, event):
        if event["name"] == "process_name":
            where = (event["args"]["name"], self._process(event["pid"]))
            self.db.execute("update process set name = ? where upid = ?", where)
        elif event["name"] == "thread_name":
            where = (event["args"]["name"], self._thread(event["pid"], event["tid"]))
            self.db.execute("update thread set name = ? where utid = ?", where)

    def _timed(self, events):
        """Slices and arrows in the order of time, and of the file where times are the same."""
        open_, starts = {}, {}  # by track: (end, id) of slices, the innermost last; of arrows that have begun
        for e in sorted(events, key=lambda e: ns(e["ts"])):
            track = self._thread(e["pid"], e["tid"])
            if e["ph"] == "X":
                self._slice(e, track, open_.setdefault(track, []))
                continue
            key, top = (e["cat"], e["id"]), open_.get(track, [])
            if not top or (e["ph"] == "f" and (e.get("bp") != "e" or key not in starts)):
                self.wrong["flow_without_direction"] += 1
            elif e["ph"] == "s":
                starts[key] = top[-1][1]
            else:
                self.db.execute("insert into flow (slice_out, slice_in) values (?, ?)", (starts[key], top[-1][1]))

    def _slice(self, e, track, stack):
        begin = ns(e["ts"])
        end = begin + ns(e["dur"])
        while stack and stack[-1][0] <= begin:
            stack.pop()
        if stack and end > stack[-1][0]:
            self.wrong["slice_drop_overlapping_complete_event"] += 1
            return
        self.args.append({"args": e.get("args", {})})
        row = (begin, end - begin, track, e.get("cat"), e["name"], len(stack), stack[-1][1] if stack else None,
               len(self.args) - 1)  # fmt: skip
        made = self.db.execute("insert into slice (ts, dur, track_id, category, name, depth, parent_id, arg_set_id)"
                               " values (?, ?, ?, ?, ?, ?, ?, ?)", row).lastrowid  # fmt: skip
        stack.append((end, made))

    def _counter(self, event):
        for series, value in event["args"].items():
            key = event["pid"], f"{event['name']} {series}"
            if key not in self.counters:
                row = self.db.execute("insert into process_counter_track (upid, name) values (?, ?)",
                                      (self._process(key[0]), key[1]))  # fmt: skip
                self.counters[key] = row.lastrowid
            self.db.execute("insert into counter (ts, track_id, value) values (?, ?, ?)",
                            (ns(event["ts"]), self.counters[key], value))  # fmt: skip
