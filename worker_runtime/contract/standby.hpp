#pragma once

#include <string_view>

/// The messages between agent and standby: worker_runtime/python/INTERNALS.md has the whole.
namespace ddprun {

/// In the pipe of DDPRUN_IMPORTS, with the program's identity (base/os/file_identity.hpp): this
/// program waits for its place before main(). No module's name has a blank.
inline constexpr std::string_view kWaitsLine = "waits ";

namespace standby_word {

inline constexpr std::string_view kHere = "here";
inline constexpr std::string_view kImports = "imports";
inline constexpr std::string_view kUnfit = "unfit";
inline constexpr std::string_view kDrops = "drops";
inline constexpr std::string_view kFit = "fit";
inline constexpr std::string_view kReady = "ready";
inline constexpr std::string_view kCheck = "check";
inline constexpr std::string_view kPlace = "place";
inline constexpr std::string_view kGone = "gone";

}  // namespace standby_word

}  // namespace ddprun
