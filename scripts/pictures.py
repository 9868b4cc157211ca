#!/usr/bin/env python3
"""The pictures of docs/pictures, drawn from recorded figures and from what the code says.

usage: scripts/pictures.py [--write | --check]
       scripts/pictures.py --record BIN_DIR
       scripts/pictures.py --write --screenshot BIN_DIR

restart.svg      the phases of a restart, from restart.json and rendezvous/events/time_use.cpp
connections.svg  who talks to whom; the code must have the words that show each connection
generation.svg   the phases of a run, with all names of the enums, and all ways between the phases

Without an option the script prints the SVG; --write puts it where it belongs; --check exits 1 if
what is there is older, or if the code no longer agrees. --record kills workers of a training,
writes into restart.json when each phase was over, and draws. --screenshot also takes page.png of a
real job in Chromium; it needs the Python of .venv, made by scripts/setup.sh --peers.
"""

import json
import os
import re
import sys

from made_files import ROOT, Unreadable, main, read
from svg import Picture

FOLDER = "docs/pictures/"
RECORD = FOLDER + "restart.json"
PAGE = FOLDER + "page.png"
TIME_USE = "rendezvous/events/time_use.cpp"
PROGRAMS_PHASES = ("start programs", "connect", "resume", "first step")
DDPRUNS_PHASES = ("stop", "prove empty", "get ready", "wait for nodes", "spawn")
REACH = re.compile(r'waterfall\.reach\("([^"]+)", (?:from|to)\.(\w+)')


# ------------------------------------------------------------------------------------ the restart

def milliseconds(microseconds):
    digits = 1 if 50 <= microseconds < 9950 else 0
    return f"{microseconds / 1000:.{digits}f} ms"


def phases_of(restart, time_use):
    """[(name, kind, from, to)] in microseconds since the kill, as TimeUse tells phases apart: each
    begins where the one before it has ended."""
    at = {event["event"]: event["us"] for event in restart["events"]}
    phases, reached = [("notice the death", "own", 0, at["failure"])], at["failure"]
    named = REACH.findall(time_use)
    if [name for name, _ in named] != [*DDPRUNS_PHASES, *PROGRAMS_PHASES]:
        raise Unreadable(f"{TIME_USE} has other phases than this script")
    for name, event in named:
        if event not in at:
            raise Unreadable(f"{RECORD} has no event `{event}`")
        end = max(at[event], reached)
        phases.append((name, "program" if name in PROGRAMS_PHASES else "own", reached, end))
        reached = end
    phases.append(("do lost steps again", "again", reached, at["again"]))
    return phases


def draw_waterfall(picture, phases, marks, top):
    """A row for each phase, and a line where something is reached. Returns where it ends."""
    left, wide, row = 172, 640, 23
    whole = phases[-1][3]
    scale = wide / whole
    bottom = top + row * len(phases)
    step = next(step for step in (5, 10, 20, 50, 100, 200, 500, 1000) if whole / step <= 8000)
    for tick in range(0, int(whole / 1000) + 1, step):
        x = left + tick * 1000 * scale
        picture.line(x, top, x, bottom, "grid")
        picture.text(x, bottom + 17, f"{tick} ms", "soft", "middle")
    for words, at, anchor in marks:
        x = left + at * scale
        picture.line(x, top - 10, x, bottom, "mark")
        picture.text(x + (3 if anchor == "end" else 0), top - 16, f"{words}: {milliseconds(at)}",
                     "", anchor)
    for at, (name, kind, begin, end) in enumerate(phases):
        y = top + row * at
        picture.text(left - 12, y + 16, name, "", "end")
        picture.rect(left + begin * scale, y + 4, max((end - begin) * scale, 2), row - 8, kind, 2)
        is_last = at == len(phases) - 1
        picture.text(left + (begin if is_last else end) * scale + (-7 if is_last else 7), y + 16,
                     milliseconds(end - begin), "figure", "end" if is_last else "start")
    return bottom


def draw_strip(picture, y, name, phases, scale, words):
    picture.text(160, y + 16, name, "", "end")
    for kind in ("own", "program"):
        begin = min(phase[2] for phase in phases if phase[1] == kind)
        end = max(phase[3] for phase in phases if phase[1] == kind)
        picture.rect(172 + begin * scale, y + 3, (end - begin) * scale, 18, kind, 2)
    picture.text(172 + end * scale + 8, y + 16, words, "soft")


def restart_picture(record, time_use):
    each = {kind: phases_of(restart, time_use) for kind, restart in record["restarts"].items()}
    phases = each["warm"]
    ends = {name: end for name, _, _, end in phases}
    last = record["restarts"]["warm"]["events"][-1]
    runs = len(record["restarts"]["warm"]["first_step_us"])
    picture = Picture(
        860, 502, "From a killed worker to the step that it was at",
        "Phases of a restart: " + ", ".join(
            f"{name} {milliseconds(end - begin)}" for name, _, begin, end in phases)
        + f". The new workers are in main after {milliseconds(ends['start programs'])}, their "
        f"first step is done after {milliseconds(ends['first step'])}, and the step of the death "
        f"is done again after {milliseconds(phases[-1][3])}.")
    picture.text(24, 34, picture.title, "title")
    picture.text(24, 56, f"train_digits in C++ on two nodes, one worker each; the median of {runs} "
                 f"restarts on {record['cores']} cores", "soft")
    legend = ((536, "own", "ddprun"), (618, "program", "the program"),
              (726, "again", "lost steps again"))
    for x, kind, words in legend:
        picture.rect(x, 24, 12, 12, kind, 2)
        picture.text(x + 18, 34, words, "soft")
    bottom = draw_waterfall(picture, phases, [
        ("in main", ends["start programs"], "middle"), ("first step", ends["first step"], "middle"),
        (f"back at step {last['step']}", phases[-1][3], "end")], 106)
    y = bottom + 52
    picture.text(24, y, "To the first step, with standbys and without", "name")
    scale = 480 / max(of[-1][2] for of in each.values())
    for row, (kind, name) in enumerate((("warm", "standbys wait"), ("cold", "--warm off"))):
        times = record["restarts"][kind]["first_step_us"]
        draw_strip(picture, y + 12 + 28 * row, name, each[kind], scale,
                   f"{milliseconds(each[kind][-1][2])} ({milliseconds(times[0]).split()[0]} to "
                   f"{milliseconds(times[-1]).split()[0]})")
    return picture.document()


# ------------------------------------------------------------------------------- the connections

# Each connection is shown by a file of the code that has these words.
SHOWN_BY = {
    "agent and rendezvous": ("rendezvous/wire/handshake.hpp", "Agent = 'a',"),
    "TLS": ("rendezvous/transport/tls.cpp", "SSL_CTX_set_min_proto_version(context, TLS1_3"),
    "ddpctl asks": ("rendezvous/wire/handshake.hpp", "Control = 'c',"),
    "ddpctl gives orders": ("rendezvous/wire/handshake.hpp", "Operator = 'o',"),
    "browser and rendezvous": ("rendezvous/http/http_server.hpp", "`GET /metrics` figures"),
    "journal in SQLite": ("rendezvous/journal/run_database.cpp", "sqlite3_open_v2("),
    "journal in etcd": ("rendezvous/etcd/etcd_client.hpp", "transport/http_connection.hpp"),
    "ddpctl and ddprun": ("agent/output/run_socket.cpp", "::socket(AF_UNIX, SOCK_STREAM"),
    "ddprun and keeper": ("agent/process/frame_channel.cpp", "socketpair(AF_UNIX, SOCK_STREAM"),
    "keeper and workers": ("agent/process/keeper_protocol.hpp", "struct KeeperSpawn"),
    "output": ("agent/output/worker_output.cpp", "::pipe2("),
    "page": ("agent/process/worker_page.cpp", "memfd_create("),
    "store": ("rendezvous/store/net/service.cpp", "::accept4("),
    "store's thread": ("rendezvous/store/net/store_server.hpp", "std::thread thread_;"),
    "workers": ("worker_runtime/comm/gloo_backend.cpp", "public c10d::ProcessGroupGloo"),
}


def connections_picture(source_of):
    for what, (path, words) in SHOWN_BY.items():
        if words not in source_of(path):
            raise Unreadable(f"{path} has no `{words}`: is the connection `{what}` another now?")
    picture = Picture(
        880, 652, "Who talks to whom",
        "Each node's ddprun has one connection to the rendezvous, proved by the job's secret, with "
        "TLS if certificates are given. ddprun and keeper share a socket pair. The keeper spawns, "
        "signals and reaps the workers. Workers write to pipes of ddprun and share a page of "
        "memory with it. All workers connect to the store, a thread of the first node's ddprun, by "
        "plain TCP, and to each other by Gloo or NCCL. ddpctl asks the rendezvous, and a run "
        "on its node by a Unix socket. Browsers ask the rendezvous over HTTP.")
    picture.text(24, 34, picture.title, "title")
    picture.box(24, 64, 160, 56, "browser", "Prometheus, curl")
    picture.box(24, 156, 160, 72, "ddpctl", "on any machine")
    picture.box(352, 64, 184, 56, "rendezvous", "one port")
    picture.box(716, 64, 140, 56, "journal", "SQLite or etcd")
    picture.way((184, 92), (352, 92), kind="plain")
    picture.text(268, 84, "HTTP or HTTPS", "soft", "middle")
    picture.way((184, 178), (372, 178), (372, 120), kind="plain")
    picture.text(276, 170, "events, logs: HTTP(S)", "soft", "middle")
    picture.way((184, 210), (400, 210), (400, 120), kind="proved")
    picture.text(276, 202, "status, orders", "soft", "middle")
    picture.way((536, 92), (716, 92), kind="plain")
    picture.text(626, 84, "file, or HTTP", "soft", "middle")
    draw_first_node(picture)
    draw_second_node(picture)
    picture.way((148, 312), (148, 254), (436, 254), (436, 120), kind="proved", ends="both")
    picture.way((794, 312), (794, 254), (476, 254), (476, 120), kind="proved", ends="both")
    picture.text(635, 246, "one connection for each node", "soft", "middle")
    picture.way((64, 228), (64, 312), kind="unix")
    picture.text(74, 275, "HTTP", "soft")
    for x, kind, words in ((24, "proved", "TCP, proved by a secret; TLS if given"),
                           (318, "plain", "other TCP, or a file"), (500, "unix", "Unix socket"),
                           (636, "inside", "pipe, memory, kernel")):
        picture.way((x, 627), (x + 30, 627), kind=kind, ends="none")
        picture.text(x + 38, 631, words, "soft")
    return picture.document()


def draw_first_node(picture):
    picture.rect(24, 284, 512, 312, "frame", 10)
    picture.text(280, 304, "node of group rank 0", "soft", "middle")
    picture.rect(44, 312, 140, 264, "box")
    picture.text(114, 338, "ddprun", "name", "middle")
    picture.text(114, 357, "the agent", "soft", "middle")
    picture.chip(84, 532, 88, "store")
    picture.box(232, 432, 96, 56, "keeper", "the parent")
    picture.rect(376, 312, 140, 192, "box")
    picture.text(446, 338, "workers", "name", "middle")
    picture.text(446, 357, "the program", "soft", "middle")
    picture.way((376, 346), (184, 346), kind="inside")
    picture.text(280, 338, "stdout, stderr: pipes", "soft", "middle")
    picture.way((184, 394), (376, 394), kind="inside", ends="both")
    picture.text(280, 386, "shared page: memfd", "soft", "middle")
    picture.way((184, 460), (232, 460), kind="unix", ends="both")
    picture.way((328, 460), (376, 460), kind="inside")
    picture.text(352, 452, "spawns", "soft", "middle")
    picture.way((446, 504), (446, 543), kind="plain", ends="none")
    picture.text(280, 535, "PyTorch's protocol", "soft", "middle")


def draw_second_node(picture):
    picture.rect(608, 284, 248, 312, "frame", 10)
    picture.text(700, 304, "any other node", "soft", "middle")
    picture.rect(624, 312, 84, 264, "box")
    picture.text(666, 338, "workers", "name", "middle", 80)
    picture.rect(748, 312, 92, 150, "box")
    picture.text(794, 338, "ddprun", "name", "middle", 88)
    picture.box(748, 520, 92, 56, "keeper", "the parent")
    picture.way((708, 346), (748, 346), kind="inside")
    picture.way((708, 394), (748, 394), kind="inside", ends="both")
    picture.way((794, 462), (794, 520), kind="unix", ends="both")
    picture.way((748, 548), (708, 548), kind="inside")
    picture.way((516, 430), (624, 430), kind="plain", ends="both")
    picture.text(572, 422, "Gloo, NCCL", "soft", "middle")
    picture.way((624, 543), (172, 543), kind="plain")


# ---------------------------------------------------------------------------- the life of a run

CORE = "rendezvous/core/"
MESSAGES = "rendezvous/wire/messages.hpp"
OPEN = ("Forming", "Running", "Stopping")
# The ways that are drawn: those from all of OPEN lead out of their common frame, or into it.
WAYS = {"Forming": {"Running", "Closed", "Adopting"}, "Running": {"Stopping", "Closed", "Adopting"},
        "Stopping": {"Forming", "Closed", "Adopting"}, "Closed": set(),
        "Adopting": set(OPEN), "Restored": {*OPEN, "Adopting"}}


def names_of_enum(text, name):
    body = re.search(rf"enum class {name}(?: : \w+)? \{{(.*?)\}};", text, re.S)
    if not body:
        raise Unreadable(f"there is no enum {name}")
    return re.findall(r"\b([A-Z]\w*)\b(?=\s*(?:=|,|$))", re.sub(r"///?<?[^\n]*", "", body[1]))


def names_of_variant(text, name):
    body = re.search(rf"using {name} =\s*std::variant<([^>]*)>;", text)
    if not body:
        raise Unreadable(f"there is no variant {name}")
    return re.findall(r"\w+", body[1])


def ways_from(phase, header):
    """The phases that the comment `Leads to:` in the header of a phase names."""
    said = re.search(r"/// Leads to: (.*?)\nstruct ", header, re.S)
    if not said:
        raise Unreadable(f"{CORE}{phase.lower()}.hpp does not say what {phase} leads to")
    text = re.sub(r"\s*///\s*", " ", said[1])
    if "the recorded phase" in text:
        recorded = re.search(r"std::variant<([^>]*)> recorded", header)
        text += recorded[1] if recorded else ""
    return set(re.findall(r"\b(?:Forming|Running|Stopping|Closed|Adopting|Restored)\b", text))


def check_phases(source_of):
    phases = names_of_variant(source_of(CORE + "run.hpp"), "Phase")
    if set(phases) != WAYS.keys():
        raise Unreadable(f"{CORE}run.hpp has the phases {', '.join(phases)}; drawn are others")
    for phase, drawn in WAYS.items():
        found = ways_from(phase, source_of(f"{CORE}{phase.lower()}.hpp"))
        if found != drawn:
            raise Unreadable(f"{CORE}{phase.lower()}.hpp says that {phase} leads to "
                             f"{', '.join(sorted(found)) or 'nothing'}; the picture shows "
                             f"{', '.join(sorted(drawn)) or 'nothing'}")


def generation_picture(source_of):
    """`source_of`: gives the text of a file of the project, as for the picture before."""
    check_phases(source_of)
    messages, nodes = source_of(MESSAGES), source_of(CORE + "nodes.hpp")
    moments = names_of_enum(messages, "Moment")
    causes = [cause for cause in names_of_enum(messages, "StopCause") if cause != "Fenced"]
    verdicts = names_of_enum(messages, "VerdictKind")
    standings = [standing for standing in names_of_enum(nodes, "Standing") if standing != "Member"]
    group = [phase.removeprefix("Workers") for phase in names_of_variant(
        source_of("agent/supervise/worker_group.hpp"), "GroupPhase")]
    if group != ["Run", "Hang", "Stop", "Killing", "Gone"]:
        raise Unreadable("agent/supervise/worker_group.hpp has other states than the picture")
    picture = Picture(
        880, 610, "The life of a generation",
        "Forming: nodes join and get ready. Running: every member has its ranks; workers reach "
        f"{', '.join(moments)}. Stopping: for {', '.join(causes)}; every member proves that it is "
        "empty. From there the next generation forms, or the run is Closed with a verdict: "
        f"{', '.join(verdicts)}. After a restart of the daemon the run is Restored from the "
        f"journal, or Adopting what nodes hold. On each node the workers' group is in "
        f"{', '.join(group)}.")
    picture.text(24, 34, picture.title, "title")
    draw_phases(picture, {"Forming": ("a node is", standings),
                          "Running": ("each Member reaches", moments),
                          "Stopping": ("the cause is", causes),
                          "Closed": ("the verdict is", verdicts)})
    draw_daemons_return(picture)
    draw_group(picture, group)
    for state in (*WAYS, *group, *(name for text, enums in (
            (messages, ("Moment", "StopCause", "VerdictKind")), (nodes, ("Standing",)))
            for enum in enums for name in names_of_enum(text, enum))):
        if not any(re.search(rf"\b{state}\b", words) for words, *_ in picture.texts):
            raise Unreadable(f"the picture of the generation has no {state}")
    return picture.document()


def draw_phases(picture, phases):
    picture.rect(24, 56, 640, 312, "frame", 10)
    picture.text(44, 78, "a node joins", "soft")
    picture.way((76, 86), (76, 112))
    left = dict(zip(phases, (44, 264, 484, 716)))
    for phase, (words, chips) in phases.items():
        x = left[phase]
        picture.rect(x, 112, 140 if phase == "Closed" else 160, 198, "box")
        middle = x + (70 if phase == "Closed" else 80)
        picture.text(middle, 136, phase, "name", "middle")
        picture.text(middle, 155, words, "soft", "middle")
        for row, chip in enumerate(chips):
            picture.chip(middle - 54, 168 + 27 * row, 108, chip)
    picture.text(124, 270, "an Unready node with", "soft", "middle")
    picture.text(124, 286, "old workers is Fenced", "soft", "middle")
    picture.way((204, 180), (264, 180))
    picture.text(234, 172, "enough", "soft", "middle")
    picture.way((424, 180), (484, 180))
    picture.text(454, 172, "a cause", "soft", "middle")
    picture.way((564, 112), (564, 92), (148, 92), (148, 112))
    picture.text(356, 84, "no process is left: the next generation", "soft", "middle")
    picture.way((644, 180), (716, 180))
    picture.text(690, 172, "the end", "soft", "middle")
    picture.way((344, 310), (344, 332), (770, 332), (770, 310))
    picture.text(554, 326, "every rank exited 0", "soft", "middle")
    picture.way((124, 310), (124, 354), (802, 354), (802, 310))
    picture.text(234, 348, "too few nodes for too long", "soft", "middle")


def draw_daemons_return(picture):
    picture.box(44, 428, 160, 56, "Restored", "from the journal")
    picture.box(484, 428, 160, 56, "Adopting", "what nodes hold")
    picture.way((124, 428), (124, 368))
    picture.text(134, 402, "a node is back", "soft")
    picture.way((204, 456), (484, 456))
    picture.text(344, 448, "a node holds a newer generation", "soft", "middle")
    picture.way((544, 368), (544, 428))
    picture.text(534, 402, "a node holds an unknown generation", "soft", "end")
    picture.way((584, 428), (584, 368))
    picture.text(594, 402, "its nodes agree, or a new one forms", "soft")


def draw_group(picture, states):
    """Any state but Gone may lead to Killing, and only that to Gone."""
    picture.text(24, 528, "The workers of a node", "name")
    for at, state in enumerate(states):
        picture.chip(44 + 172 * at, 556, 104, state)
        if at:
            picture.way((172 * at - 24, 567), (44 + 172 * at, 567))
    picture.way((96, 556), (96, 540), (440, 540), (440, 556))
    picture.way((96, 578), (96, 594), (612, 594), (612, 578))
    picture.way((268, 578), (268, 594), ends="none")


# --------------------------------------------------------------------------------------- the files

def source(path):
    try:
        return read(path)
    except FileNotFoundError:
        raise Unreadable(f"there is no {path}") from None


def make():
    return {FOLDER + "restart.svg": restart_picture(json.loads(source(RECORD)), source(TIME_USE)),
            FOLDER + "connections.svg": connections_picture(source),
            FOLDER + "generation.svg": generation_picture(source)}


def run(arguments):
    if arguments[:1] == ["--record"] and len(arguments) == 2:
        import picture_runs

        text = picture_runs.text_of(picture_runs.recorded(os.path.abspath(arguments[1])))
        with open(os.path.join(ROOT, RECORD), "w", encoding="utf-8") as file:
            file.write(text)
        sys.argv[1:] = ["--write"]
    elif arguments[:2] == ["--write", "--screenshot"] and len(arguments) == 3:
        import picture_runs

        picture_runs.browser_picture(os.path.abspath(arguments[2]), os.path.join(ROOT, PAGE))
        sys.argv[1:] = ["--write"]
    return main("pictures", "its sources", make)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
