#pragma once

#include <string>
#include <string_view>

namespace ddprun::agent {

/// Takes the carriage returns out of what a terminal shows that it has added to what was written to
/// it: one before each line feed. Pure.
class AddedReturns {
public:
    /// Appends to `out` what was written.
    void remove(std::string_view shown, std::string& out);

    /// Nothing follows for now: what was held back was written.
    void finish(std::string& out);

private:
    bool is_held_ = false;  ///< a carriage return, until it is known what follows it
};

}  // namespace ddprun::agent
