#include "agent/watch/kernel_notes.hpp"

#include <algorithm>
#include <array>
#include <csignal>

#include <fmt/format.h>

#include "base/whole_number.hpp"

namespace ddprun::agent {

namespace {

constexpr std::size_t kNotesMax = 64;
constexpr std::size_t kNoteBytesMax = 512;

constexpr std::string_view kMemoryKill = "Killed process ";
constexpr std::string_view kGpuError = "Xid (";
// The words that x86 and arm64 log about fatal signals.
constexpr std::array<std::string_view, 4> kCrashes = {
    " segfault at ", "traps: ", " general protection", "unhandled "};

bool contains(std::string_view text, std::string_view part) {
    return text.find(part) != std::string_view::npos;
}

bool is_telling(std::string_view text) {
    return contains(text, kMemoryKill) || contains(text, kGpuError) ||
           std::any_of(kCrashes.begin(), kCrashes.end(),
                       [text](std::string_view part) { return contains(text, part); });
}

bool names(std::string_view text, int pid) {
    const std::array<std::string, 4> forms = {
        fmt::format("[{}]", pid), fmt::format("{}{} ", kMemoryKill, pid),
        fmt::format("pid={},", pid), fmt::format("pid={} ", pid)};
    return std::any_of(forms.begin(), forms.end(),
                       [text](const std::string& form) { return contains(text, form); });
}

}  // namespace

void KernelNotes::take(std::string_view record) {
    const std::size_t semicolon = record.find(';');
    if (semicolon == std::string_view::npos) {
        return;
    }
    std::string_view text = record.substr(semicolon + 1);
    // Lines of a record that begin with a blank are its dictionary.
    text = text.substr(0, std::min(text.find('\n'), kNoteBytesMax));
    if (!is_telling(text)) {
        return;
    }
    if (notes_.size() == kNotesMax) {
        notes_.pop_front();
    }
    notes_.emplace_back(text);
}

std::string KernelNotes::about(int pid, std::optional<int> signal) const {
    const auto newest = [this](const auto& fits) {
        const auto found = std::find_if(notes_.rbegin(), notes_.rend(), fits);
        return found == notes_.rend() ? std::string() : *found;
    };
    std::string note = newest([pid](const std::string& text) { return names(text, pid); });
    if (note.empty() && signal == SIGKILL) {
        note = newest([](const std::string& text) { return contains(text, kMemoryKill); });
    }
    if (note.empty()) {
        note = newest([](const std::string& text) { return contains(text, kGpuError); });
    }
    return note;
}

std::optional<long long> memory_kills_in(std::string_view vmstat) {
    return number_after<long long>(vmstat, "\noom_kill ");
}

}  // namespace ddprun::agent
