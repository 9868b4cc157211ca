#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.hpp"
#include "launcher/surroundings/surroundings.hpp"

namespace ddprun::launcher {

/// A variable that is set and not empty, and what it is called.
struct Variable {
    std::string name;
    std::string value;

    [[nodiscard]] Error wrong(std::string_view why) const;
};

/// A scheduler's variables. `names` are one variable's, the newest first; of these the first that
/// is set counts.
class Variables {
public:
    explicit Variables(const Surroundings& surroundings) : surroundings_(surroundings) {}

    [[nodiscard]] std::optional<Variable> first_of(std::initializer_list<const char*> names) const;
    [[nodiscard]] bool has(const char* name) const { return first_of({name}).has_value(); }
    /// Empty where it is not there.
    [[nodiscard]] std::string text(const char* name) const;

    /// A whole number up to `most`, or `otherwise` where there is none; fails with a line for the
    /// user.
    [[nodiscard]] Result<std::uint64_t> number(std::initializer_list<const char*> names,
                                               std::uint64_t most, std::uint64_t otherwise) const;
    [[nodiscard]] Result<int> small(std::initializer_list<const char*> names, std::size_t most,
                                    int otherwise) const;

private:
    const Surroundings& surroundings_;
};

/// The port at which the nodes of a job meet: another port for each job, below those that Linux
/// gives to programs that ask for any (32768 and above).
[[nodiscard]] std::uint16_t port_of_job(std::uint64_t number);

}  // namespace ddprun::launcher
