#include "launcher/ctl/local_rendezvous.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>

#include "agent/output/run_folder.hpp"
#include "base/os/network_interfaces.hpp"
#include "base/os/numeric_address.hpp"
#include "base/os/visit_folder.hpp"
#include "base/split.hpp"
#include "base/whole_number.hpp"
#include "launcher/ctl/local_runs.hpp"
#include "launcher/ctl/tcp_sockets.hpp"
#include "rendezvous/wire/endpoint.hpp"

namespace ddprun::launcher {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kDaemon = "ddprun-rendezvous";

bool is_own_daemon(const fs::path& process) {
    struct stat status {};
    std::error_code failure;
    return ::stat(process.c_str(), &status) == 0 && status.st_uid == ::geteuid() &&
           fs::read_symlink(process / "exe", failure).filename().string().starts_with(kDaemon);
}

/// "socket:[4711]" of each descriptor, the number alone.
void add_sockets(const fs::path& process, std::set<std::string>& inodes) {
    visit_folder(process / "fd", [&inodes](const fs::path& descriptor) {
        constexpr std::string_view kStart = "socket:[";
        std::error_code failure;
        const std::string target = fs::read_symlink(descriptor, failure).string();
        if (target.starts_with(kStart)) {
            inodes.insert(target.substr(kStart.size(), target.size() - kStart.size() - 1));
        }
    });
}

/// The address of a socket that listens at `address`, perhaps a wildcard, for its clients.
std::string way_to(const std::string& address) {
    return address == "0.0.0.0" ? "127.0.0.1" : address == "::" ? "::1" : address;
}

std::vector<std::string> daemons_here() {
    std::set<std::string> inodes;
    visit_folder("/proc", [&inodes](const fs::path& process) {
        if (whole_number<int>(process.filename().string()) && is_own_daemon(process)) {
            add_sockets(process, inodes);
        }
    });
    std::vector<std::string> places;
    if (inodes.empty()) {
        return places;
    }
    for (const TcpSocket& socket : tcp_sockets()) {
        if (socket.remote.port == 0 && inodes.contains(socket.inode)) {
            places.push_back(rdzv::to_string({way_to(socket.local.host), socket.local.port}));
        }
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

RendezvousHere rendezvous_here(const std::string& log_dir, const std::string& job) {
    std::vector<std::string> of_job;
    std::vector<std::string> places;
    for (const std::string& folder : running_here(log_dir)) {
        if (const std::optional<agent::RunNote> note = agent::read_run_note(folder)) {
            add_if_new(places, note->rendezvous);
            add_if_new(of_job, note->job == job ? note->rendezvous : "");
        }
    }
    if (!of_job.empty()) {
        return {.places = of_job, .is_of_job = true};
    }
    for (const std::string& place : daemons_here()) {
        add_if_new(places, place);
    }
    return {.places = places};
}

}  // namespace ddprun::launcher
