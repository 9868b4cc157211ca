#pragma once

namespace ddprun::agent {

/// The size of a terminal, in characters. 0: not known.
struct WindowSize {
    int rows = 0;
    int columns = 0;

    bool operator==(const WindowSize&) const = default;
};

}  // namespace ddprun::agent
