#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.hpp"
#include "launcher/plan/flags.hpp"
#include "launcher/plan/launch_plan.hpp"
#include "launcher/plan/values.hpp"

/// Functions by which rows of the flag table take a value that depends on no other flag. The steps
/// of `path` lead from the plan to what is filled: pointers to members, or functions that give one.
/// `fill::seconds<fill::settings_of, &rdzv::JobSettings::grow_delay>`
namespace ddprun::launcher::fill {

[[nodiscard]] inline rdzv::JobSettings& settings_of(LaunchPlan& plan) {
    return plan.identity().settings;
}

template <auto step, auto... rest, typename T>
[[nodiscard]] auto& follow(T& from) {
    auto& there = std::invoke(step, from);
    if constexpr (sizeof...(rest) == 0) {
        return there;
    } else {
        return follow<rest...>(there);
    }
}

/// Writes a value that has been parsed, or hands its error on.
template <auto... path, typename T>
[[nodiscard]] Result<void> write(Result<T> parsed, LaunchPlan& plan) {
    if (!parsed) {
        return parsed.error();
    }
    follow<path...>(plan) = *std::move(parsed);
    return {};
}

template <auto... path>
Result<void> text(const Given& given, LaunchPlan& plan) {
    follow<path...>(plan) = given.value;
    return {};
}

/// A switch that is on.
template <auto... path>
Result<void> on(const Given& /*given*/, LaunchPlan& plan) {
    follow<path...>(plan) = true;
    return {};
}

template <int least, int most, auto... path>
Result<void> whole_number(const Given& given, LaunchPlan& plan) {
    return write<path...>(parse_whole_number(given, {.least = least, .most = most}), plan);
}

template <auto... path>
Result<void> seconds(const Given& given, LaunchPlan& plan) {
    return write<path...>(parse_seconds(given), plan);
}

/// An end to wait for must lie ahead.
template <auto... path>
Result<void> some_seconds(const Given& given, LaunchPlan& plan) {
    return write<path...>(parse_seconds(given, Milliseconds{1}), plan);
}

template <std::uint64_t least, auto... path>
Result<void> bytes(const Given& given, LaunchPlan& plan) {
    return write<path...>(parse_bytes(given, least), plan);
}

/// `choices` is a constexpr array of pairs: a word, and what it means.
template <const auto& choices, auto... path>
Result<void> choice(const Given& given, LaunchPlan& plan) {
    std::vector<std::string_view> words;
    for (const auto& [word, meaning] : choices) {
        words.push_back(word);
    }
    const Result<std::size_t> index = parse_choice(given, words);
    if (!index) {
        return index.error();
    }
    follow<path...>(plan) = choices.at(*index).second;
    return {};
}

// Values with a grammar of their own.
Result<void> hang_timeout(const Given& given, LaunchPlan& plan);
Result<void> hang_notice(const Given& given, LaunchPlan& plan);
Result<void> signals(const Given& given, LaunchPlan& plan);
/// After `signals`, whose list it shortens.
Result<void> ignore_hup(const Given& given, LaunchPlan& plan);
Result<void> prepare(const Given& given, LaunchPlan& plan);
Result<void> notify(const Given& given, LaunchPlan& plan);
Result<void> rendezvous_lost_timeout(const Given& given, LaunchPlan& plan);
Result<void> role(const Given& given, LaunchPlan& plan);

}  // namespace ddprun::launcher::fill
