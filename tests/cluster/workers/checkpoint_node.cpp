// One node's part in checkpoints.py: publishes checkpoints into a folder, or finds the newest there
// that can be read, as a training does.
//
//     checkpoint_node publish DIR FIRST LAST SEED    steps FIRST to LAST; a line for each
//     checkpoint_node newest DIR                     "step=N seed=S", or "none"
//     checkpoint_node clean DIR                      removes what dead writers left
//
// A checkpoint's bytes and one of its values are made from the seed: a mixture of two is noticed.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include "worker_runtime/checkpoint/checkpoint_folder.hpp"
#include "worker_runtime/checkpoint/publishing.hpp"

namespace {

using namespace ddprun;
using namespace ddprun::worker;

constexpr std::int64_t kBytes = 300'000;  // several of NFS's requests

int publish(const std::string& dir, std::int64_t first, std::int64_t last,
            const std::string& seed) {
    const std::vector<std::byte> bytes(kBytes, static_cast<std::byte>(std::atoi(seed.c_str())));
    const TensorView tensor{.name = "weight", .dtype = "U8", .shape = {kBytes}, .bytes = bytes};
    for (std::int64_t step = first; step <= last; ++step) {
        const CheckpointInfo info{
            .step = step, .generation = Generation(1), .world_size = 1, .values = {{"seed", seed}}};
        const Result<std::string> path = publish_checkpoint(dir, info, {tensor});
        if (!path) {
            std::fprintf(stderr, "%s\n", path.error().what.c_str());
            return 1;
        }
        std::printf("published %lld\n", static_cast<long long>(step));
        std::fflush(stdout);
    }
    return 0;
}

int newest(const std::string& dir) {
    const Result<std::vector<std::int64_t>> steps = list_checkpoints(dir);
    if (!steps) {
        std::fprintf(stderr, "%s\n", steps.error().what.c_str());
        return 1;
    }
    for (const std::int64_t step : *steps) {
        const Result<LoadedCheckpoint> loaded = read_checkpoint(dir, step);
        if (!loaded) {
            std::fprintf(stderr, "%s\n", loaded.error().what.c_str());
            continue;
        }
        const std::string& seed = loaded->info.values.at("seed");
        const auto expected = static_cast<std::byte>(std::atoi(seed.c_str()));
        const std::span<const std::byte> bytes = loaded->tensors.at("weight").parts.front().bytes;
        const bool is_whole = std::all_of(bytes.begin(), bytes.end(),
                                          [expected](std::byte one) { return one == expected; });
        std::printf("step=%lld seed=%s%s\n", static_cast<long long>(step), seed.c_str(),
                    is_whole && bytes.size() == kBytes ? "" : " TORN");
        return 0;
    }
    std::printf("none\n");
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    const std::vector<std::string> words(argv + 1, argv + argc);
    if (words.size() == 5 && words[0] == "publish") {
        return publish(words[1], std::atoll(words[2].c_str()), std::atoll(words[3].c_str()),
                       words[4]);
    }
    if (words.size() == 2 && words[0] == "newest") {
        return newest(words[1]);
    }
    if (words.size() == 2 && words[0] == "clean") {
        remove_leftovers(words[1]);
        return 0;
    }
    return 2;
}
