#include "launcher/plan/help.hpp"

#include <array>
#include <string_view>

#include <fmt/format.h>

#include "base/split.hpp"
#include "launcher/plan/flags.hpp"

namespace ddprun::launcher {

namespace {

constexpr std::size_t kHelpColumn = 31;

/// Both --help and --help-all begin with it.
constexpr std::string_view kHead = R"(usage: ddprun [flags] PROGRAM [its arguments ...]

Starts workers on every node, gives each its place (RANK, WORLD_SIZE, MASTER_ADDR, ...),
and forms the group again when a worker or a node is lost. Takes torchrun's flags.

  ddprun --nproc-per-node 8 train.py --epochs 5
      eight workers on this machine; nothing else to set
  ddprun --nnodes 2 --nproc-per-node 8 --rdzv-id a --rdzv-endpoint head:29400 train.py
      the same line on each of two nodes, in any order; one of them is "head"
  ddprun --nnodes 2:4 --max-restarts 3 --rdzv-id b --rdzv-endpoint head:29400 ./train
      two to four nodes as they come and go; three worker failures are survived

Flags end at PROGRAM: all behind it is the program's. A name that ends in .py runs under
Python; one with "/" is a path; another is sought here, then in PATH.
)";

constexpr std::string_view kCommonTail = R"(
ddprun --help-all has every flag, the exit codes and the variables.
ddpctl --help shows how to ask a running job what it does, and how to read its logs.
)";

constexpr std::string_view kAllTail = R"(
exit codes, the same on every node:
  0, 75              every worker exited 0; the workers left as they were asked
  N, 128 + signal    how the first worker failed for good; the signal that ended ddprun
  2                  a flag, variable or value that cannot be used
  69, 71             rendezvous lost or out of reach; nodes are missing
  93, 94             failures at one step again and again; the workers hung
  96, 97, 125        a worker survived SIGKILL; preflight failed; a bug in ddprun
  126, 127           the program cannot be executed; does not exist

environment:
  PET_<FLAG>          default of a flag: PET_NNODES=2, PET_RDZV_ENDPOINT=head:29400
  PYTHON_EXEC         else Python beside ddprun with torch, VIRTUAL_ENV's, CONDA's, PATH's
  DDPRUN_SECRET_FILE  as --secret-file
  OMP_NUM_THREADS     else, of several workers: the cores of the node shared out
)";

struct Heading {
    FlagGroup group;
    std::string_view title;
};

constexpr std::array kHeadings = {
    Heading{FlagGroup::Size, "size of the job:"},
    Heading{FlagGroup::Meeting, "how nodes meet:"},
    Heading{FlagGroup::Failing, "failing, growing, ending (for the whole run):"},
    Heading{FlagGroup::Program, "program:"},
    Heading{FlagGroup::Placement, "where on a node workers run:"},
    Heading{FlagGroup::Output, "output:"},
    Heading{FlagGroup::Other, "other:"},
};

std::string describe(const Flag& flag) {
    std::string left = "  ";
    if (flag.letter != '\0') {
        left += fmt::format("-{}, ", flag.letter);
    }
    left += fmt::format("--{}", flag.name);
    if (!flag.placeholder.empty()) {
        left += fmt::format(" {}", flag.placeholder);
    }
    std::string text;
    if (left.size() + 1 > kHelpColumn) {
        text = left + "\n";
        left.clear();
    }
    for (const std::string_view line : split(flag.help, '\n')) {
        text += fmt::format("{:<{}}{}\n", left, kHelpColumn, line);
        left.clear();
    }
    return text;
}

}  // namespace

std::string help_text() {
    std::string text{kHead};
    text += "\nthe flags that most jobs need:\n";
    for (const Flag& flag : all_flags()) {
        if (flag.is_common) {
            text += describe(flag);
        }
    }
    return text + std::string{kCommonTail};
}

std::string help_all_text() {
    std::string text{kHead};
    for (const Heading& heading : kHeadings) {
        text += fmt::format("\n{}\n", heading.title);
        for (const Flag& flag : all_flags()) {
            if (flag.group == heading.group) {
                text += describe(flag);
            }
        }
    }
    return text + std::string{kAllTail};
}

std::string version_text() {
    return "ddprun " DDPRUN_VERSION "\n";
}

}  // namespace ddprun::launcher
