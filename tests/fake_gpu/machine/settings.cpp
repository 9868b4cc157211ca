#include "tests/fake_gpu/machine/settings.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string_view>

#include "tests/fake_gpu/machine/gpus.hpp"

namespace fake_gpu {

namespace {

constexpr std::string_view kPrefix = "DDPRUN_FAKE_GPU_";
constexpr long kDefaultGpus = 2;
constexpr long kDefaultMemoryMib = 16384;
constexpr int kMibShift = 20;

std::string variable(std::string_view name, const std::string& otherwise = "") {
    const char* text = std::getenv((std::string(kPrefix) + std::string(name)).c_str());
    return text == nullptr || *text == '\0' ? otherwise : text;
}

[[noreturn]] void refuse(std::string_view name, const std::string& text,
                         const std::string& expected) {
    give_up(std::string(kPrefix) + std::string(name) + "=" + text + " is not " + expected);
}

long number(std::string_view name, long otherwise, long least, long most) {
    const std::string text = variable(name, std::to_string(otherwise));
    long value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < least || value > most) {
        refuse(name, text,
               "a number from " + std::to_string(least) + " to " + std::to_string(most));
    }
    return value;
}

bool is_set(std::string_view name) {
    return number(name, 0, 0, 1) == 1;
}

bool is_network() {
    const std::string link = variable("LINK", "nvlink");
    if (link != "nvlink" && link != "network") {
        refuse("LINK", link, "nvlink or network");
    }
    return link == "network";
}

/// Returns the folder that all processes of the fake machine share. A missing folder is made.
std::string state_folder() {
    constexpr mode_t kOwnerOnly = 0700;
    std::string folder = variable("STATE", "/dev/shm/ddprun-fake-gpu-" + std::to_string(geteuid()));
    (void)mkdir(folder.c_str(), kOwnerOnly);
    if (access(folder.c_str(), W_OK) != 0) {
        refuse("STATE", folder, "a folder that can be written");
    }
    return folder;
}

Settings read_settings() {
    constexpr long kMostMib = 1 << 20;
    constexpr long kMostMicroseconds = 60'000'000;
    constexpr long kMostMilliseconds = 60'000;
    constexpr long kMostTasks = 1'000'000'000;
    return {
        .gpu_count = static_cast<int>(number("COUNT", kDefaultGpus, 0, kMostGpus)),
        .bytes_of_gpu =
            static_cast<std::size_t>(number("MEMORY_MIB", kDefaultMemoryMib, 1, kMostMib))
            << kMibShift,
        .node = variable("NODE", "node"),
        .state_folder = state_folder(),
        .task_delay = std::chrono::microseconds(number("TASK_DELAY_US", 0, 0, kMostMicroseconds)),
        .is_memory_poisoned = is_set("POISON"),
        .is_traced = is_set("TRACE"),
        .is_death_noticed = is_network(),
        .nccl_faults = variable("NCCL_FAULT"),
        .exit_delay = std::chrono::milliseconds(number("EXIT_DELAY_MS", 0, 0, kMostMilliseconds)),
        .broken_task = number("BREAK_AT_TASK", -1, -1, kMostTasks),
    };
}

}  // namespace

const Settings& settings() {
    // The object is never destroyed: threads of streams outlive main().
    static const Settings& read = *std::make_unique<Settings>(read_settings()).release();
    return read;
}

void give_up(const std::string& what) {
    (void)std::fprintf(stderr, "fake GPU: %s\n", what.c_str());
    (void)std::fflush(stderr);
    std::abort();
}

}  // namespace fake_gpu
