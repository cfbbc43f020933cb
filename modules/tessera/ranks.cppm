// Ranks: how they start, and what they are to each other.
export module tessera:ranks;

import tessera.collective;
import tessera.plugin;

export namespace tessera::collective {

// Ranks, their world and communicators, and the machine's rates.
using collective::CallKind, collective::CollectiveRate, collective::measure_collectives;
using collective::Communicator, collective::is_of_peer, collective::PeerFailed,
    collective::RankContext, collective::RankPlace, collective::Transport, collective::Work,
    collective::World;
using collective::FailedAttempt, collective::launcher_place, collective::LauncherPlace,
    collective::ranks_started_here, collective::is_first_process, collective::join_launch,
    collective::launch, collective::launched_by_other, collective::LaunchOptions,
    collective::MachineOptions, collective::RankFunction, collective::run_threads;

}  // namespace tessera::collective

export namespace tessera::plugin {

// Plugins: where they are looked for, what is loaded, and kinds of a program's own.
using plugin::configure_host, plugin::host, plugin::Host, plugin::Kind, plugin::LoadedPlugin,
    plugin::SearchOptions;
using plugin::declare_kind, plugin::Registrar;

}  // namespace tessera::plugin
