#include "agent/daemon/signs_of_life.hpp"

namespace ddprun::agent {

SignsOfLife signs_of_life(const OutputMeasure& output, Duration cpu, const SharedPage& page,
                          const StackSaver& stacks, Generation generation, std::size_t workers) {
    SignsOfLife seen{
        .cpu = cpu, .output_bytes = output.bytes, .workers = {}, .is_busy = output.is_console_full};
    for (std::size_t i = 0; i < workers; ++i) {
        const LocalRank local_rank(static_cast<int>(i));
        seen.workers.push_back(
            {.pid = stacks.pid_of(local_rank), .progress = page.progress(generation, local_rank)});
    }
    return seen;
}

}  // namespace ddprun::agent
