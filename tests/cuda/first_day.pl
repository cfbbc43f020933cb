#!/usr/bin/env perl
# ./dev gpu on the emulator.
#   first_day.pl none|all SCRIPT PROGRAM EMULATOR KERNELS PLUGIN...
# none: without a GPU it says so in one line. all: every step passes in small sizes, and none is repeated.
use strict;
use warnings;
use File::Temp qw(tempdir);
use FindBin;
use JSON::PP;
use lib "$FindBin::RealBin/../support";
use Files qw(text_of write_file);

my ($what, $script, $program, $emulator, $kernels, @plugins) = @ARGV;
die "usage: first_day.pl none|all SCRIPT PROGRAM EMULATOR KERNELS PLUGIN...\n" unless @plugins;
my $folder = tempdir(CLEANUP => 1);
$ENV{LD_LIBRARY_PATH} = join ':', $emulator, grep { defined && length } $ENV{LD_LIBRARY_PATH};
$ENV{TESSERA_EMULATOR_KERNELS} = $kernels;
$ENV{TESSERA_EMULATOR_DEVICES} = $what eq 'none' ? 0 : 4;

# (status, lines)
sub day {
  my @command = ($^X, $script, '--program', $program, (map { ('--plugin', $_) } @plugins), '--folder', "$folder/results", '--small', @_);
  open my $pipe, '-|', @command or die "@command: $!\n";
  my @lines = <$pipe>;
  close $pipe;
  return ($? >> 8, @lines);
}

if ($what eq 'none') {
  my ($status, @lines) = day();
  die "without a GPU it ends with $status and prints:\n@lines" unless $status == 1 && @lines == 1 && $lines[0] =~ /^gpu: no GPU can be used: .*cuda/;
  die "without a GPU it leaves results\n" if glob "$folder/results/*.json";
  exit 0;
}

my ($status, @lines) = day();
my @steps = map { /^(\w+): / && $1 ne 'page' ? $1 : () } @lines;
for my $step (@steps) {
  my $result = decode_json(text_of("$folder/results/$step.json"));
  die "$step: $result->{status}: $result->{problem}\n"
    unless $result->{status} eq 'passed' || ($step eq 'sanitizer' && $result->{status} eq 'absent');
}
die "it ends with $status:\n@lines" if $status != 0;
die "there are the steps @steps\n" unless "@steps" eq 'doctor plugin operators sanitizer bits configs attention models nccl';
my $page = text_of("$folder/results/gpu.md");
die "the page lacks $_:\n$page" for grep { index($page, "\n## $_: ") < 0 } @steps;
die "the page has no operators:\n$page" unless $page =~ /^\| linear \d+ to \d+ bf16 \|/m;

for my $model (@{ decode_json(text_of("$folder/results/models.json"))->{rows} }) {
  my @operators = @{ $model->{operators} };
  my ($product) = grep { $_->{operator} =~ /^linear, / } @operators;
  die "$model->{model}: linear was not measured\n" unless $product && $product->{measured} > 0 && $product->{bound} > 0;
  my @gaps = map { $_->{gap} } @operators;
  die "$model->{model}: the largest gap is not the first: @gaps\n" if grep { $gaps[$_] > $gaps[$_ - 1] } 1 .. $#gaps;
}
my $shares = decode_json(text_of("$folder/results/plugin.json"))->{deviations};
die "operators on the device have no deviations from the CPU, or too large ones: " . encode_json($shares) . "\n"
  unless $shares->{softmax} && !$shares->{add} && !grep { $_ > 1 } values %$shares;
my $device = text_of("$folder/results/cudnn_device.json");
die "cuDNN's description of the device is\n$device" unless $device =~ /"deviceVer": 900/;
my ($product) = grep { $_->{name} =~ /^linear / } @{ decode_json(text_of("$folder/results/operators.json"))->{rows} };
die "a product has no rate of the fastest algorithm\n" unless $product && $product->{tflops_measured};

# What has passed is not repeated unless it is asked for; what has failed is.
my $failed = decode_json(text_of("$folder/results/doctor.json"));
write_file("$folder/results/doctor.json", encode_json({ %$failed, status => 'failed', problem => 'none' }));
($status, @lines) = day('--only', 'doctor', '--only', 'operators', '--only', 'bits', '--again', 'operators');
my $text = join '', @lines;
die "a second call ends with $status:\n$text" unless $status == 0;
die "a second call prints:\n$text" unless $text =~ /^doctor: passed \(/m && $text =~ /^operators: passed \(/m && $text =~ /^bits: passed before$/m;
($status, @lines) = day('--only', 'nothing');
die "a step that does not exist is accepted\n" if $status == 0;
print "all steps pass, and none is repeated\n";
