#include "launcher/ctl/local_rendezvous.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>

#include "agent/output/run_folder.hpp"
#include "base/os/network_interfaces.hpp"
#include "base/os/numeric_address.hpp"
#include "base/split.hpp"
#include "base/whole_number.hpp"
#include "launcher/ctl/local_runs.hpp"
#include "rendezvous/wire/endpoint.hpp"

namespace ddprun::launcher {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kDaemon = "ddprun-rendezvous";

template <typename Use>
void for_each_in(const fs::path& folder, Use use) {
    std::error_code failure;
    for (fs::directory_iterator it(folder, failure), end; !failure && it != end;
         it.increment(failure)) {
        use(it->path());
    }
}

bool is_own_daemon(const fs::path& process) {
    struct stat status {};
    std::error_code failure;
    return ::stat(process.c_str(), &status) == 0 && status.st_uid == ::geteuid() &&
           fs::read_symlink(process / "exe", failure).filename().string().starts_with(kDaemon);
}

/// "socket:[4711]" of each descriptor, the number alone.
void add_sockets(const fs::path& process, std::set<std::string>& inodes) {
    for_each_in(process / "fd", [&inodes](const fs::path& descriptor) {
        constexpr std::string_view kStart = "socket:[";
        std::error_code failure;
        const std::string target = fs::read_symlink(descriptor, failure).string();
        if (target.starts_with(kStart)) {
            inodes.insert(target.substr(kStart.size(), target.size() - kStart.size() - 1));
        }
    });
}

template <typename Number>
Number hexadecimal(std::string_view digits) {
    constexpr int kBase = 16;
    Number number = 0;
    std::from_chars(digits.data(), digits.data() + digits.size(), number, kBase);
    return number;
}

/// "0100007F:72D8" of /proc/net/tcp, or 32 digits of tcp6: words in the machine's byte order. An
/// address for all is shown as that of the loopback.
std::optional<rdzv::Endpoint> endpoint_of(std::string_view text) {
    constexpr std::size_t kDigits = 8;  // of a word
    const std::size_t colon = text.find(':');
    if (colon == std::string_view::npos) {
        return std::nullopt;
    }
    std::array<std::uint32_t, 4> words{};
    const std::size_t count = colon / kDigits;
    for (std::size_t i = 0; i < std::min(count, words.size()); ++i) {
        words.at(i) = hexadecimal<std::uint32_t>(text.substr(i * kDigits, kDigits));
    }
    const auto port = hexadecimal<std::uint16_t>(text.substr(colon + 1));
    const bool is_v6 = count == words.size();
    if (std::all_of(words.begin(), words.end(), [](std::uint32_t word) { return word == 0; })) {
        return rdzv::Endpoint{is_v6 ? "::1" : "127.0.0.1", port};
    }
    std::array<char, INET6_ADDRSTRLEN> shown{};
    ::inet_ntop(is_v6 ? AF_INET6 : AF_INET, words.data(), shown.data(), shown.size());
    return rdzv::Endpoint{shown.data(), port};
}

/// Those of `table` that listen, and have one of these inodes.
void add_listening(const char* table, const std::set<std::string>& inodes,
                   std::vector<std::string>& places) {
    constexpr std::size_t kAddress = 1;
    constexpr std::size_t kState = 3;
    constexpr std::size_t kInode = 9;
    std::ifstream file(table);
    std::string line;
    std::getline(file, line);  // the names of the columns
    while (std::getline(file, line)) {
        std::vector<std::string_view> words = split(line, ' ');
        std::erase(words, "");
        if (words.size() <= kInode || words[kState] != "0A" ||
            !inodes.contains(std::string(words[kInode]))) {
            continue;
        }
        if (const std::optional<rdzv::Endpoint> endpoint = endpoint_of(words[kAddress])) {
            places.push_back(rdzv::to_string(*endpoint));
        }
    }
}

std::vector<std::string> daemons_here() {
    std::set<std::string> inodes;
    for_each_in("/proc", [&inodes](const fs::path& process) {
        if (whole_number<int>(process.filename().string()) && is_own_daemon(process)) {
            add_sockets(process, inodes);
        }
    });
    std::vector<std::string> places;
    if (!inodes.empty()) {
        add_listening("/proc/net/tcp", inodes, places);
        add_listening("/proc/net/tcp6", inodes, places);
    }
    return places;
}

std::vector<rdzv::Endpoint> endpoints_in(const std::string& list) {
    std::vector<rdzv::Endpoint> endpoints;
    for (const std::string_view text : split(list, ',')) {
        if (const Result<rdzv::Endpoint> endpoint = rdzv::parse_endpoint(text)) {
            endpoints.push_back(*endpoint);
        }
    }
    return endpoints;
}

std::set<std::string> own_addresses() {
    std::set<std::string> own;
    for (const NetworkInterface& one : network_interfaces()) {
        own.insert(one.addresses.begin(), one.addresses.end());
    }
    return own;
}

bool are_of_one_host(const std::string& one, const std::string& other) {
    if (one == other) {
        return true;
    }
    const std::vector<std::string> left = addresses_of(one);
    const std::vector<std::string> right = addresses_of(other);
    const std::set<std::string> own = own_addresses();
    const auto is_own = [&own](const std::string& address) { return own.contains(address); };
    return std::find_first_of(left.begin(), left.end(), right.begin(), right.end()) != left.end() ||
           (std::any_of(left.begin(), left.end(), is_own) &&
            std::any_of(right.begin(), right.end(), is_own));
}

void add_if_new(std::vector<std::string>& places, const std::string& place) {
    const bool is_known = std::any_of(places.begin(), places.end(), [&](const std::string& one) {
        return is_same_rendezvous(one, place);
    });
    if (!place.empty() && !is_known) {
        places.push_back(place);
    }
}

}  // namespace

bool is_same_rendezvous(const std::string& one, const std::string& other) {
    if (one == other) {
        return true;
    }
    for (const rdzv::Endpoint& left : endpoints_in(one)) {
        for (const rdzv::Endpoint& right : endpoints_in(other)) {
            if (left.port == right.port && are_of_one_host(left.host, right.host)) {
                return true;
            }
        }
    }
    return false;
}

std::vector<std::string> rendezvous_here(const std::string& log_dir, const std::string& job) {
    std::vector<std::string> of_job;
    std::vector<std::string> places;
    for (const std::string& folder : running_here(log_dir)) {
        if (const std::optional<agent::RunNote> note = agent::read_run_note(folder)) {
            add_if_new(places, note->rendezvous);
            add_if_new(of_job, note->job == job ? note->rendezvous : "");
        }
    }
    if (!of_job.empty()) {
        return of_job;
    }
    for (const std::string& place : daemons_here()) {
        add_if_new(places, place);
    }
    return places;
}

}  // namespace ddprun::launcher
