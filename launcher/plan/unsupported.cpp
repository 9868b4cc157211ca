#include <array>
#include <string_view>

#include <fmt/format.h>

#include "launcher/plan/sections.hpp"
#include "launcher/plan/values.hpp"

namespace ddprun::launcher {

namespace {

struct UnsupportedValue {
    std::string_view flag;
    std::string_view harmless;  ///< torchrun's default: asks for nothing
    std::string_view why;
};

constexpr std::array kUnsupportedValues = {
    UnsupportedValue{"event-log-handler", "null", "ddprun has no event handlers; leave it out"},
    UnsupportedValue{"logs-specs", "",
                     "ddprun has no log plug-ins; leave it out, --log-dir, --redirects and --tee "
                     "choose what is kept"},
    UnsupportedValue{
        "numa-binding", "",
        "ddprun does not bind to NUMA nodes; leave it out, or put numactl and its flags "
        "before your program"},
    UnsupportedValue{"start-method", "spawn",
                     "ddprun executes workers and has no start method; leave it out"},
    UnsupportedValue{"duplicate-stdout-filters", "",
                     "ddprun does not filter lines; leave it out, and grep stdout.log"},
    UnsupportedValue{"duplicate-stderr-filters", "",
                     "ddprun does not filter lines; leave it out, and grep stderr.log"},
};

struct UnsupportedSwitch {
    std::string_view flag;
    std::string_view why;
};

constexpr std::array kUnsupportedSwitches = {
    UnsupportedSwitch{"run-path",
                      "ddprun has no Python of its own to run the script in; leave it out"},
    UnsupportedSwitch{"virtual-local-rank",
                      "ddprun gives every worker all devices and its own LOCAL_RANK; leave it out"},
};

}  // namespace

Result<void> refuse_unsupported(const CommandLine& line) {
    for (const UnsupportedValue& unsupported : kUnsupportedValues) {
        const std::optional<Given> given = line.value(unsupported.flag);
        if (given && given->value != unsupported.harmless) {
            return bad_value(*given, fmt::format("not supported: {}", unsupported.why));
        }
    }
    for (const UnsupportedSwitch& unsupported : kUnsupportedSwitches) {
        if (line.is_on(unsupported.flag)) {
            return Error{ErrorCode::InvalidArgument,
                         fmt::format("--{}: not supported: {}", unsupported.flag, unsupported.why)};
        }
    }
    return {};
}

}  // namespace ddprun::launcher
