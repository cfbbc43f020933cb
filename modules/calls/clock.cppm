export module tessera.calls:clock;

import tessera.base;

export namespace tessera::collective {

/// Now, on the machine's steady clock, which the times of calls are on.
std::int64_t steady_nanoseconds();

}  // namespace tessera::collective
