export module tessera.base:log;

import :standard;

export namespace tessera {

/// Levels of messages, the least important first.
enum class LogLevel { debug, info, warning, error };

/// Writes one line to stderr: "warning: text". Colour only on a terminal and without NO_COLOR.
/// Ranks other than 0 write warnings and errors only, with their rank in front.
void log(LogLevel level, std::string_view text);

/// The minimum level that is written; TESSERA_LOG=debug|info|warning|error sets it at the start
/// (default warning).
void set_log_level(LogLevel level);

/// Which rank this process is, for the lines' front; -1 (none) at the start.
void set_log_rank(int rank);

}  // namespace tessera
