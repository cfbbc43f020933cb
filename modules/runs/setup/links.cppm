export module tessera.runs:links;

import tessera.base;
import tessera.mesh;
import tessera.collective;
import :spec;

// Costs of communication, for the planner of redistributions.

export namespace tessera::runs {

/// Sets the links of the mesh's axes to those of the config, if it has any.
void set_configured_links(const RunSpec& config, const DeviceMesh& mesh);

/// Where the config asks for it: measures a link in a few milliseconds, and sets it for all axes.
/// All ranks of this machine share its memory, so their axes do not differ. Collective; the figures
/// are rank 0's, so that ranks agree, and rounded to powers of two, so that runs differ less.
void measure_links(const RunSpec& config, const DeviceMesh& mesh, collective::World& world);

/// "data 2 us, 8 GB/s" for each axis that the config gives, or when they are measured; empty where
/// the config says nothing of links.
std::string links_text(const RunSpec& config);
/// The costs as they are set now.
std::string links_text(const DeviceMesh& mesh);

}  // namespace tessera::runs
