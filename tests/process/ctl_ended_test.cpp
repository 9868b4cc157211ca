// ddpctl reports on a job that is over, from the files that its nodes have left.

#include <fstream>
#include <string>

#include <nlohmann/json.hpp>

#include "agent/output/run_folder.hpp"
#include "base/os/machine_identity.hpp"
#include "launcher/ctl/ended_job.hpp"
#include "launcher/ctl/ended_page.hpp"
#include "launcher/ctl/runs_text.hpp"
#include "launcher/ctl/tcp_sockets.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/cluster.hpp"

namespace {

using namespace ddprun::launcher;
using ddprun::agent::RunFolder;
using ddprun::test::TempDir;
using nlohmann::ordered_json;

constexpr ddprun::Milliseconds kStarted{1000};
constexpr ddprun::Milliseconds kEnded{61000};

void write(const std::string& path, const std::string& text) {
    std::ofstream(path) << text;
}

RunFolder begin(const std::string& path, const std::string& node) {
    RunFolder run(path, {.program = "/home/train.py",
                         .job = "llama",
                         .hostname = node,
                         .pid = 4711,
                         .rendezvous = "head:29411"});
    REQUIRE(run.begin(kStarted).has_value());
    return run;
}

constexpr const char* kFormed =
    R"({"v":1,"seq":1,"time":"2026-11-22T17:20:33.100Z","event":"formed","generation":)";

/// A node whose rank 3 failed in the second generation, and rank 1 in the first.
std::string failed_node(const TempDir& dir) {
    std::string path = dir / "llama_00000001";
    {
        RunFolder run = begin(path, "gpu-07");
        REQUIRE(run.end(kEnded, 139, "rank 3 on gpu-07 was killed by SIGSEGV").has_value());
    }
    const std::string failure =
        R"({"seq":2,"time":"2026-11-22T17:20:34Z","event":"failure","host":"gpu-07",)";
    write(path + "/events.jsonl",
          std::string(kFormed) + "1,\"workers\":4}\n" + failure +
              "\"generation\":1,\"rank\":1,\"exit_code\":3,\"step\":10}\n" + kFormed +
              "2,\"workers\":4}\n" + R"({"event":"finished","generation":2,"rank":2,"step":4710})" +
              "\n" + failure +
              R"("generation":2,"rank":3,"signal":11,"signal_name":"SIGSEGV","step":4711,)" +
              R"("kernel":"train.py[99]: segfault at 0","logs":")" + path + "/attempt_1/1\"}\n" +
              R"({"event":"last_words","generation":2,"rank":3,"text":"it is bad"})" +
              "\ncut off\n");
    return path;
}

}  // namespace

TEST_CASE("of a job that failed its folder tells how, who, where and what to type next") {
    const TempDir dir;
    const std::string path = failed_node(dir);
    write(path + "/report.json",
          R"({"verdict":"failed","text":"rank 3 on gpu-07 was killed by SIGSEGV","exit_code":139,
              "time":{"text":"training 90 %"},
              "first_failure":{"rank":0,"hostname":"gpu-08","generation":2,"exit_code":7,
                               "last_step":4709,"hung":false,"kernel":"","logs":"/elsewhere"}})");
    const ordered_json job = ended_job({path}, "");
    CHECK(job["ended"] == true);
    CHECK(job["state"] == "over");
    CHECK(job["job"] == "llama");
    CHECK(job["exit_code"] == 139);
    CHECK(job["verdict"] == "failed");
    CHECK(job["ended_ms"] == kEnded.count());
    CHECK(job["generation"] == 2);
    CHECK(job["world_size"] == 4);
    CHECK(job["last_step"] == 4711);
    CHECK(job["rendezvous"] == "head:29411");
    REQUIRE(job["failed"].size() == 2);  // not that of the generation before
    CHECK(job["failed"][0]["rank"] == 0);
    CHECK(job["failed"][0]["host"] == "gpu-08");
    CHECK(job["failed"][0]["cause"] == "exited with code 7");
    CHECK(job["failed"][1]["rank"] == 3);
    CHECK(job["failed"][1]["text"] == "it is bad");

    const std::string text = ended_job_text(job);
    CAPTURE(text);
    CHECK(text.find("\n  ended   1970-01-0") != std::string::npos);
    CHECK(text.find("job llama: over, exit code 139: rank 3 on gpu-07 was killed by SIGSEGV\n") ==
          0);
    for (const std::string& line :
         {std::string("  workers train.py, generation 2, 4 ranks\n"),
          std::string("  failed  rank 0 on gpu-08 exited with code 7, last step 4709\n"),
          std::string("last step 4711; train.py[99]: segfault at 0: it is bad\n"),
          std::string("  step    4711 was the last\n"), std::string("  time    training 90 %\n"),
          "  logs    " + path + " of gpu-07\n",
          std::string("  next    ddpctl report llama_00000001\n"),
          std::string("          ddpctl logs --rdzv-id llama --rank 3 -n 50\n"),
          std::string("          ddpctl page llama_00000001\n")}) {
        CAPTURE(line);
        CHECK(text.find(line) != std::string::npos);
    }
    CHECK(ended_job({path}, "/l")["next"][0] == "ddpctl report llama_00000001 --log-dir /l");
}

TEST_CASE("nodes of one job on one machine end as one job") {
    const TempDir dir;
    const std::string first = failed_node(dir);
    const std::string second = dir / "llama_00000002";
    {
        RunFolder run = begin(second, "gpu-07#2");
        REQUIRE(run.end(kEnded, 139, "over").has_value());
    }
    const ordered_json job = ended_job({second, first}, "");
    REQUIRE(job["nodes"].size() == 2);
    CHECK(job["nodes"][0]["host"] == "gpu-07#2");
    CHECK(job["nodes"][1]["exit_code"] == 139);
    CHECK(job["failed"].size() == 1);
    CHECK(job["generation"] == 2);
    CHECK(ended_job_text(job).find("llama_00000001 of gpu-07, exit code 139\n") !=
          std::string::npos);
}

TEST_CASE("of a job whose ddprun was killed that is said, and what it saw last") {
    const TempDir dir;
    const std::string path = dir / "llama_00000001";
    begin(path, "gpu-07");
    const auto machine = ddprun::read_machine_identity();
    write(path + "/run.json", ordered_json{{"program", "train.py"},
                                           {"job", "llama"},
                                           {"hostname", machine.name},
                                           {"started_ms", 1000},
                                           {"machine",
                                            {{"name", machine.name},
                                             {"boot_id", machine.boot_id},
                                             {"machine_id", machine.machine_id}}}}
                                  .dump());
    write(path + "/events.jsonl", std::string(kFormed) + R"(1,"workers":4})" + "\n");
    const ordered_json job = ended_job({path}, "");
    CHECK(job["ended"] == true);
    CHECK(job["state"] == "killed");
    CHECK_FALSE(job.contains("exit_code"));
    const std::string text = ended_job_text(job);
    CAPTURE(text);
    CHECK(text.find("job llama: its ddprun was killed, and has left no verdict\n") == 0);
    CHECK(text.find("formed       generation 1") != std::string::npos);
    CHECK(text.find("ddpctl report") == std::string::npos);
}

TEST_CASE("the page of a job that is over is told of its last state, and that it is recorded") {
    const TempDir dir;
    const std::string path = failed_node(dir);
    const ordered_json job = ended_job({path}, "");
    const ordered_json ranks = {{{"rank", 2}, {"phase", "finished"}, {"step", 4710}}};
    const ordered_json state = {
        {"generation", 2}, {"ranks", ranks}, {"memory_bytes", 7}, {"workers", 2}};
    const ordered_json told = ended_status(job, state, ddprun::Milliseconds(62000))["jobs"][0];
    CHECK(told["phase"] == "closed");
    CHECK(told["recorded"] == true);
    CHECK(told["exit_code"] == 139);
    CHECK(told["in_phase_ms"] == 1000);
    CHECK(told["nodes"][0]["hostname"] == "gpu-07");
    CHECK(told["nodes"][0]["memory_bytes"] == 7);
    CHECK(told["ranks"] == ranks);
    // The state of an earlier generation says nothing about the last one.
    ordered_json earlier = state;
    earlier["generation"] = 1;
    CHECK_FALSE(
        ended_status(job, earlier, ddprun::Milliseconds(62000))["jobs"][0].contains("ranks"));
    CHECK_FALSE(
        ended_status(job, nullptr, ddprun::Milliseconds(62000))["jobs"][0].contains("ranks"));
}

TEST_CASE("what a job's logs have lost is told when it is over, too") {
    const TempDir dir;
    const std::string path = dir / "llama_00000001";
    {
        RunFolder run = begin(path, "gpu-07");
        REQUIRE(run.end(kEnded, 0, "every rank exited 0", {},
                        {{.rank = 3, .lines = 1204, .why = "No space left on device"}})
                    .has_value());
    }
    const std::string lost = "rank 3: 1,204 lines of its log were lost: No space left on device";
    CHECK(ended_job_text(ended_job({path}, "")).find("  lost    " + lost + "\n") !=
          std::string::npos);
    const auto runs = ddprun::agent::runs_in(dir.path());
    CHECK(runs_text(runs).find("every rank exited 0; " + lost + "\n") != std::string::npos);
}

TEST_CASE("the kernel's table of TCP sockets tells whose they are") {
    const std::string v4 =
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  "
        "timeout "
        "inode\n"
        "   0: 0100007F:72D8 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        "
        "0 "
        "4711 1 0 100 0 0 10 0\n"
        "   1: 0100007F:C350 0100007F:72D8 01 00000000:00000000 00:00000000 00000000     0        "
        "0 "
        "4712 1 0 20 4 30 10 -1\n"
        "   2: zz00007F:C350 0100007F:72D8 01 0 0 0 0 0 4713\n";
    const auto sockets = parse_tcp_sockets(v4);
    REQUIRE(sockets.size() == 2);
    CHECK(sockets[0].local == ddprun::rdzv::Endpoint{"127.0.0.1", 29400});
    CHECK(sockets[0].remote.port == 0);
    CHECK(sockets[0].owner == 1000);
    CHECK(sockets[0].inode == "4711");
    CHECK(sockets[1].local.port == 50000);
    const auto v6 = parse_tcp_sockets(
        "   0: 00000000000000000000000001000000:72D8 0000000000000000FFFF00000100007F:C350 01 0:0 "
        "0:0 0 1000 0 99\n");
    REQUIRE(v6.size() == 1);
    CHECK(v6[0].local.host == "::1");
    CHECK(v6[0].remote.host == "127.0.0.1");
    CHECK(parse_tcp_sockets("").empty());
}
