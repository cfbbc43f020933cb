import tessera.app.first_day;

int main(int argc, char** argv) { return tessera::app::first_day::run_command(argc, argv); }
