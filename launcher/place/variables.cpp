#include "launcher/place/variables.hpp"

#include <utility>

#include <fmt/format.h>

#include "base/printable.hpp"
#include "base/whole_number.hpp"

namespace ddprun::launcher {

namespace {

constexpr std::uint64_t kFirstPort = 23000;
constexpr std::uint64_t kPorts = 9768;

}  // namespace

Error Variable::wrong(std::string_view why) const {
    return Error{ErrorCode::InvalidArgument,
                 fmt::format("{}={}: {}", name, printable(value, std::string::npos), why)};
}

std::optional<Variable> Variables::first_of(std::initializer_list<const char*> names) const {
    for (const char* name : names) {
        std::string value = surroundings_.variable(name).value_or("");
        if (!value.empty()) {
            return Variable{name, std::move(value)};
        }
    }
    return std::nullopt;
}

std::string Variables::text(const char* name) const {
    return surroundings_.variable(name).value_or("");
}

Result<std::uint64_t> Variables::number(std::initializer_list<const char*> names,
                                        std::uint64_t most, std::uint64_t otherwise) const {
    const std::optional<Variable> found = first_of(names);
    if (!found) {
        return otherwise;
    }
    const std::optional<std::uint64_t> value = whole_number<std::uint64_t>(found->value);
    if (!value || *value > most) {
        return found->wrong(fmt::format("must be a whole number up to {}", most));
    }
    return *value;
}

Result<int> Variables::small(std::initializer_list<const char*> names, std::size_t most,
                             int otherwise) const {
    const Result<std::uint64_t> value = number(names, most, static_cast<std::uint64_t>(otherwise));
    return value ? Result<int>(static_cast<int>(*value)) : Result<int>(value.error());
}

std::uint16_t port_of_job(std::uint64_t number) {
    return static_cast<std::uint16_t>(kFirstPort + number % kPorts);
}

}  // namespace ddprun::launcher
