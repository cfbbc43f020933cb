module;
#include <vector>
module tessera.runs;

import tessera.base;
import tessera.options;
import tessera.collective;
import :section_keys;

namespace tessera::runs {

/// [mesh], [plugins] and [[parallel]]: the ranks, and what is placed on them.
std::vector<Key> mesh_keys() {
  return {
      {"mesh.axes", field<&RunSpec::mesh, &MeshConfig::axes>,
       "Names of the mesh's axes, outermost first. None: one rank."},
      {"mesh.shape", field<&RunSpec::mesh, &MeshConfig::shape>,
       "Ranks along each axis; their product is the number of ranks.", from(1, 65536)},
      {"mesh.latency_us", field<&RunSpec::mesh, &MeshConfig::latency_us>,
       "Of each axis: microseconds to begin a collective, by which redistributions are planned. "
       "None: 10 on each axis.",
       not_negative},
      {"mesh.bandwidth_gb", field<&RunSpec::mesh, &MeshConfig::bandwidth_gb>,
       "Of each axis: gigabytes that a rank receives in a second. Given together with "
       "`mesh.latency_us`. None: 5 on each axis.",
       positive},
      {"mesh.measure_links", field<&RunSpec::mesh, &MeshConfig::measure_links>,
       "Measure both figures when the run starts. Sums over several axes may then be computed in "
       "another order in the next run, which changes their last bits."},
      {"mesh.background", field<&RunSpec::mesh, &MeshConfig::background>,
       "Move the data of collectives on a thread of its own while the rank computes. Faster where "
       "links are slow or cores are idle; otherwise the rank moves it while it waits."},
      {.path = "mesh.device_collectives",
       .slot =
           words<&RunSpec::mesh, &MeshConfig::device_collectives, collective::DeviceCollectives>(
               {{"ordered", collective::DeviceCollectives::ordered},
                {"own_order", collective::DeviceCollectives::own_order},
                {"host", collective::DeviceCollectives::host}}),
       .doc =
           "How collectives move between devices: `ordered` (by the plugin for the device, with "
           "sums along the tree over the ranks and the CPU's bits), `own_order` (also with the "
           "sums of the plugin's library: other bits), `host` (through the memory of the host)."},
      {"mesh.transport", field<&RunSpec::mesh, &MeshConfig::transport>,
       "How machines are connected: `auto` (where the ranks are on several: with an address `ucx` "
       "where it is installed, else `tcp`; without one the installed transport), `shm` (all ranks "
       "must be on one machine), or a transport, such as `mpi`."},
      {"mesh.interface", field<&RunSpec::mesh, &MeshConfig::interface>,
       "The network interface of each machine, by name or address, at which its ranks and second "
       "homes listen, such as `ib0`; `0.0.0.0`: all. Where a machine's has another name, its "
       "`TESSERA_INTERFACE` says so. Empty: the address through which the machines meet."},
      path_key("plugins.paths", field<&RunSpec::plugins, &PluginsConfig::paths>,
               "Plugin files, or folders of them, to load besides the installed ones."),
      {.path = "parallel.style",
       .slot = entry_field<&RunSpec::parallel, &StyleConfig::style>,
       .doc = "Name of the parallel style (`tessera plugin list` shows them).",
       .required = true},
      {.path = "parallel.axis",
       .slot = entry_field<&RunSpec::parallel, &StyleConfig::axis>,
       .doc =
           "The mesh axis on which it works, or a list of axes for a style that takes several. A "
           "style that only changes modules has none."},
      {.path = "parallel.on",
       .slot = entry_field<&RunSpec::parallel, &StyleConfig::on>,
       .doc = "Patterns over the modules' qualified names: `*` within a part, `**` over parts, "
              "`{a,b}` alternatives, `.` the whole model.",
       .required = true},
      {"parallel.options", entry_field<&RunSpec::parallel, &StyleConfig::options>,
       "The style's own options (`tessera plugin info NAME` lists them)."},
  };
}

}  // namespace tessera::runs
