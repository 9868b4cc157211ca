#include "agent/watch/kernel_notes.hpp"

#include <csignal>

#include "tests/support/catch.hpp"

namespace ddprun::agent {

TEST_CASE("the kernel's line tells that the OOM killer killed a worker") {
    KernelNotes notes;
    notes.take("6,900,100,-;eth0: link up");
    notes.take(
        "3,901,200,-;Out of memory: Killed process 4242 (python) total-vm:8kB, oom_score_adj:0\n"
        " SUBSYSTEM=memory");
    notes.take(
        "3,902,300,-;Memory cgroup out of memory: Killed process 77 (pt_data_worker) anon:1kB");
    CHECK(notes.about(4242, SIGKILL) ==
          "Out of memory: Killed process 4242 (python) total-vm:8kB, oom_score_adj:0");
    // Another pid: in a container, or a child of the worker's.
    CHECK(notes.about(5, SIGKILL) ==
          "Memory cgroup out of memory: Killed process 77 (pt_data_worker) anon:1kB");
    CHECK(notes.about(5, SIGSEGV).empty());
    CHECK(notes.about(424, std::nullopt).empty());
    CHECK(KernelNotes().about(4242, SIGKILL).empty());
}

TEST_CASE("crashes and errors of GPUs are found in the kernel's log") {
    KernelNotes notes;
    notes.take("4,1,1,-;train[31]: segfault at 0 ip 00007f sp 00007f error 6 in train[55+1]");
    notes.take("4,2,2,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=32, GPU has fallen off the bus.");
    CHECK(notes.about(31, SIGSEGV).starts_with("train[31]: segfault"));
    CHECK(notes.about(32, 6).starts_with("NVRM: Xid"));
    // A GPU's error may concern every process.
    CHECK(notes.about(33, std::nullopt).starts_with("NVRM: Xid"));
}

TEST_CASE("what is kept of the kernel's log is bounded, the newest is kept") {
    KernelNotes notes;
    for (int pid = 0; pid < 1000; ++pid) {
        notes.take("3,1,1,-;Killed process " + std::to_string(pid) + " (x)" +
                   std::string(5000, 'y'));
    }
    CHECK(notes.about(999, std::nullopt).starts_with("Killed process 999 (x)"));
    CHECK(notes.about(999, std::nullopt).size() == 512);
    CHECK(notes.about(3, std::nullopt).empty());
    notes.take("no record");
}

TEST_CASE("kills by the OOM killer are counted where the log may not be read") {
    CHECK(memory_kills_in("nr_free_pages 12\noom_kill 3\nswap_ra 0\n") == 3);
    CHECK_FALSE(memory_kills_in("nr_free_pages 12\n"));
}

}  // namespace ddprun::agent
