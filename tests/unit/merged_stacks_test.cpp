// Which ranks wait at one place, from what ddprun-stacks writes of each.

#include "launcher/ctl/merged_stacks.hpp"

#include <string>
#include <vector>

#include <fmt/format.h>

#include "tests/support/catch.hpp"

namespace ddprun::launcher {

namespace {

std::string kernel_part(int rank, int pid, const std::string& channel) {
    return fmt::format(
        "rank {0}, process {1}\n\nprocess {1} python3, state S, child of 77, has used {0}.50 s of "
        "CPU\n  thread {1} python3, state S, waits in {2}\n    system call 202 0x7f{1}0 0x0\n"
        "  command python3 --token=rank{0}\n\n",
        rank, pid, channel);
}

std::string python_part(int pid, int line) {
    return fmt::format(
        "--- Python's stacks, by py-spy\nProcess {0}: python3 train.py\nPython v3.11.2\n\n"
        "Thread {0} (idle): \"MainThread\"\n    all_reduce (train.py:{1})\n\n",
        pid, line);
}

std::string native_part(int pid, const std::string& function) {
    return fmt::format(
        "--- native stacks, by eu-stack\nPID {0} - process\nTID {0}:\n#0  0x00007f{0} {1}\n\n", pid,
        function);
}

}  // namespace

TEST_CASE("ranks that wait at one place are one, the many before the few") {
    std::vector<RankStacks> stacks;
    for (const int rank : {3, 0, 1, 2}) {
        const int line = rank == 2 ? 57 : 42;
        stacks.push_back(
            {rank, kernel_part(rank, 1000 + rank, "futex") + python_part(1000 + rank, line)});
    }
    const std::vector<MergedStacks> merged = merge_stacks(stacks);
    REQUIRE(merged.size() == 2);
    CHECK(merged[0].ranks == std::vector<int>{0, 1, 3});
    CHECK(merged[1].ranks == std::vector<int>{2});
    const std::string text = merged_stacks_text(merged);
    CHECK(text.find("=== 3 ranks (0-1,3): Python's stacks, by py-spy, as of 0\n") == 0);
    CHECK(text.find("all_reduce (train.py:42)") != std::string::npos);
    CHECK(text.find("\n\n=== 1 rank (2): Python's stacks, by py-spy\n") != std::string::npos);
    CHECK(text.find("token") == std::string::npos);
}

TEST_CASE("without Python's stacks the native ones tell, without these the kernel") {
    const std::string refused = "--- Python's stacks, by py-spy\n(it exited with code 1)\n\n";
    const std::vector<MergedStacks> native =
        merge_stacks({{0, kernel_part(0, 10, "x") + refused + native_part(10, "poll")},
                      {1, kernel_part(1, 11, "y") + refused + native_part(11, "poll")}});
    REQUIRE(native.size() == 1);
    CHECK(native[0].title == "native stacks, by eu-stack");

    const std::vector<MergedStacks> kernel =
        merge_stacks({{0, kernel_part(0, 10, "futex") + refused},
                      {1, kernel_part(1, 11, "futex")},
                      {2, kernel_part(2, 12, "pipe_read")}});
    REQUIRE(kernel.size() == 2);
    CHECK(kernel[0].ranks == std::vector<int>{0, 1});
    CHECK(kernel[0].text.find("waits in futex") != std::string::npos);
    CHECK(kernel[0].text.find("token") == std::string::npos);
}

TEST_CASE("what several nodes have shown is merged over all of them") {
    const auto of_node = [](int first, int odd) {
        std::vector<RankStacks> stacks;
        for (int rank = first; rank < first + 3; ++rank) {
            const int line = rank == odd ? 57 : 42;
            stacks.push_back(
                {rank, kernel_part(rank, 1000 + rank, "futex") + python_part(1000 + rank, line)});
        }
        return merged_stacks_text(merge_stacks(stacks));
    };
    const std::string hint = "ddpctl: no py-spy beside python3\n";
    const StacksOfNodes nodes =
        merge_nodes(hint + of_node(0, 1) + hint + of_node(3, 99) +
                    "[gpu-07] ddprun: it is gone before all was read\n" + of_node(6, 7));
    REQUIRE(nodes.merged.size() == 2);
    CHECK(nodes.merged[0].ranks == std::vector<int>{0, 2, 3, 4, 5, 6, 8});
    CHECK(nodes.merged[1].ranks == std::vector<int>{1, 7});
    CHECK(nodes.notices ==
          std::vector<std::string>{"ddpctl: no py-spy beside python3",
                                   "[gpu-07] ddprun: it is gone before all was read"});
    const std::string text = merged_stacks_text(nodes.merged);
    CHECK(text.find("=== 7 ranks (0,2-6,8): Python's stacks, by py-spy, as of 0\n") == 0);
    CHECK(text.find("\n\n=== 2 ranks (1,7): Python's stacks, by py-spy, as of 1\n") !=
          std::string::npos);
    CHECK(text.find("gpu-07") == std::string::npos);
}

TEST_CASE("what is no merged stacks is shown as it is, and nothing is made of it") {
    const StacksOfNodes nodes = merge_nodes("=== 1 rank (x): what\n=== 9 ranks (0-99999999): a\n");
    CHECK(nodes.merged.empty());
    CHECK(nodes.notices.size() == 2);
    CHECK(merge_nodes("").notices.empty());
    CHECK(merge_nodes("=== 1 rank (2147483647): a\nb\n").merged.at(0).ranks ==
          std::vector<int>{2147483647});
    CHECK(merge_nodes("=== 9 ranks (0-1048570,0-1048570): a\n").merged.empty());
    CHECK(merge_nodes("=== 1 rank (0): a\n\x1b]0;b\a\n").merged.at(0).text.find('\x1b') ==
          std::string::npos);
}

}  // namespace ddprun::launcher
