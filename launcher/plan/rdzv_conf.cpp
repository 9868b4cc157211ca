// --rdzv-conf.

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "launcher/plan/fills.hpp"
#include "launcher/plan/sections.hpp"

namespace ddprun::launcher {

namespace {

/// A key that no flag has.
struct OwnKey {
    std::string_view name;
    FillPlan fill;
};

constexpr std::array kOwnKeys = {
    OwnKey{"last_call_timeout", fill::seconds<fill::settings_of, &rdzv::JobSettings::patience>},
    OwnKey{"join_timeout", fill::some_seconds<fill::settings_of, &rdzv::JobSettings::join_timeout>},
    OwnKey{"grow_delay", fill::seconds<fill::settings_of, &rdzv::JobSettings::grow_delay>},
};

/// torchrun's keys that change nothing here.
struct UnusedKey {
    std::string_view name;
    std::string_view why;
};

constexpr std::string_view kLease =
    "a silent node is lost when its lease of one second ends, whatever is set";
constexpr std::string_view kEtcd = "only etcd needs it, and ddprun brings its own rendezvous";

constexpr std::array kUnusedKeys = {
    UnusedKey{"timeout", "join_timeout is how long nodes are awaited"},
    UnusedKey{"close_timeout", "a run is closed at once"},
    UnusedKey{"heartbeat_timeout", kLease},
    UnusedKey{"keep_alive_interval", kLease},
    UnusedKey{"keep_alive_max_attempt", kLease},
    UnusedKey{"read_timeout", "no store is read to form a group"},
    UnusedKey{"is_host", "the machine that owns the endpoint's address serves it"},
    UnusedKey{"rank", "the flag --node-rank says it"},
    UnusedKey{"etcd_prefix", kEtcd},
    UnusedKey{"protocol", kEtcd},
    UnusedKey{"ssl_cert", kEtcd},
    UnusedKey{"ssl_cert_key", kEtcd},
    UnusedKey{"ca_cert", kEtcd},
    UnusedKey{"cert", kEtcd},
    UnusedKey{"key", kEtcd},
    UnusedKey{"cacert", kEtcd},
};

template <typename Keys>
auto find_key(const Keys& keys, std::string_view name) {
    const auto found = std::find_if(keys.begin(), keys.end(),
                                    [name](const auto& key) { return key.name == name; });
    return found == keys.end() ? nullptr : &*found;
}

const Flag* flag_of_key(std::string_view name) {
    const auto flags = all_flags();
    const auto found = std::find_if(flags.begin(), flags.end(), [name](const Flag& flag) {
        return !flag.conf_key.empty() && flag.conf_key == name;
    });
    return found == flags.end() ? nullptr : &*found;
}

std::string known_keys() {
    std::string names;
    for (const OwnKey& key : kOwnKeys) {
        names += fmt::format("{}, ", key.name);
    }
    for (const Flag& flag : all_flags()) {
        names += flag.conf_key.empty() ? "" : fmt::format("{}, ", flag.conf_key);
    }
    for (const UnusedKey& key : kUnusedKeys) {
        names += fmt::format("{}, ", key.name);
    }
    return names + "store_type";
}

Result<void> take_entry(const std::string& key, const Given& entry, CommandLine& line,
                        LaunchPlan& plan) {
    if (const OwnKey* own = find_key(kOwnKeys, key)) {
        return own->fill(entry, plan);
    }
    if (const Flag* flag = flag_of_key(key)) {
        line.set_default(flag->name, entry);
        return {};
    }
    if (const UnusedKey* unused = find_key(kUnusedKeys, key)) {
        plan.warnings.push_back(fmt::format("{} has no effect: {}", entry.shown(), unused->why));
        return {};
    }
    if (key != "store_type") {
        return bad_value(entry, fmt::format("unknown key; known are {}", known_keys()));
    }
    return entry.value == "tcp"
               ? Result<void>()
               : bad_value(entry, "ddprun serves its rendezvous over TCP; leave it out");
}

}  // namespace

Result<void> take_rdzv_conf(CommandLine& line, LaunchPlan& plan) {
    const std::optional<Given> given = line.value("rdzv-conf");
    if (!given || given->value.empty()) {
        return {};
    }
    const Result<std::map<std::string, Given>> conf = parse_key_values(*given);
    if (!conf) {
        return conf.error();
    }
    for (const auto& [key, entry] : *conf) {
        if (Result<void> taken = take_entry(key, entry, line, plan); !taken) {
            return taken;
        }
    }
    return {};
}

}  // namespace ddprun::launcher
