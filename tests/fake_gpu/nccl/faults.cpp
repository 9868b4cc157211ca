#include "tests/fake_gpu/nccl/faults.hpp"

#include <array>
#include <atomic>
#include <charconv>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tests/fake_gpu/machine/settings.hpp"

namespace fake_gpu {

namespace {

constexpr std::string_view kOfInit = "init-";

struct Rule {
    Fault fault;
    bool is_of_init = false;
    std::optional<long> at;  ///< none: always
};

[[noreturn]] void refuse(std::string_view word) {
    give_up("DDPRUN_FAKE_GPU_NCCL_FAULT: " + std::string(word) +
            " is none of [init-]KIND[:MS][@N], KIND one of hang, error, slow, die, refuse, "
            "break");
}

/// Cuts off the last `mark` and the text behind it, and returns the number in that text.
std::optional<long> cut_number(std::string_view& word, char mark) {
    const std::size_t place = word.rfind(mark);
    if (place == std::string_view::npos) {
        return std::nullopt;
    }
    const std::string_view digits = word.substr(place + 1);
    long number = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
    if (error != std::errc() || end != digits.data() + digits.size() || number < 0) {
        refuse(word);
    }
    word = word.substr(0, place);
    return number;
}

FaultKind kind_called(std::string_view name) {
    constexpr std::array<std::string_view, 7> kNames = {"",    "hang",   "error", "slow",
                                                        "die", "refuse", "break"};
    for (std::size_t kind = 1; kind < kNames.size(); ++kind) {
        if (kNames[kind] == name) {
            return static_cast<FaultKind>(kind);
        }
    }
    refuse(name);
}

Rule read_rule(std::string_view word) {
    Rule rule;
    rule.at = cut_number(word, '@');
    rule.fault.time = std::chrono::milliseconds(cut_number(word, ':').value_or(0));
    rule.is_of_init = word.starts_with(kOfInit);
    word.remove_prefix(rule.is_of_init ? kOfInit.size() : 0);
    rule.fault.kind = kind_called(word);
    return rule;
}

std::vector<Rule> read_rules() {
    std::vector<Rule> rules;
    std::string_view rest = settings().nccl_faults;
    while (!rest.empty()) {
        const std::string_view word = rest.substr(0, rest.find(','));
        rest.remove_prefix(std::min(word.size() + 1, rest.size()));
        rules.push_back(read_rule(word));
    }
    return rules;
}

Fault find(bool is_of_init, long number) {
    // The object is never destroyed: threads of streams outlive main().
    static const std::vector<Rule>& rules =
        *std::make_unique<std::vector<Rule>>(read_rules()).release();
    for (const Rule& rule : rules) {
        if (rule.is_of_init == is_of_init && rule.at.value_or(number) == number) {
            return rule.fault;
        }
    }
    return {};
}

std::atomic<long> operations_begun = 0;

}  // namespace

Fault next_fault_of_operation() {
    constexpr bool kIsOfInit = false;
    return find(kIsOfInit, operations_begun++);
}

Fault next_fault_of_init() {
    static std::atomic<long> number = 0;
    constexpr bool kIsOfInit = true;
    return find(kIsOfInit, number++);
}

}  // namespace fake_gpu

extern "C" long ncclFakeGpuOperations() {
    return fake_gpu::operations_begun;
}
