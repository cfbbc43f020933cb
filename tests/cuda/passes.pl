#!/usr/bin/env perl
# What MachineCode.pm reads from machine code, for loops that are known: those of passes.cu, compiled for several GPUs.
#   passes.pl NVCC NVDISASM     skipped (77) where one of them is `-`
use strict;
use warnings;
use File::Temp qw(tempdir);
use FindBin;
use lib "$FindBin::RealBin/../support";
use Files qw(write_file);
use lib $FindBin::RealBin;
use MachineCode qw(judged_of pass_line);

my ($nvcc, $nvdisasm) = @ARGV;
die "usage: passes.pl NVCC NVDISASM\n" unless defined $nvdisasm;
if ($nvcc eq '-' || $nvdisasm eq '-') {
  print "skipped: there is no ", ($nvcc eq '-' ? 'nvcc' : 'nvdisasm'), "; ./dev setup cuda installs both\n";
  exit 77;
}

# Of each pass: elements, loads and their bytes, stores and theirs, bytes in flight.
my %expected = (
  four_vectors_f32 => [[ 16, 4, 64, 4, 64, 64 ]],
  halves_bf16 => [[ 1, 1, 2, 0, 0, 2 ]],
  chain_f32 => [[ 4, 4, 16, 0, 0, 4 ]],
  two_passes_f32 => [[ 4, 4, 16, 0, 0, 16 ], [ 1, 1, 4, 1, 4, 4 ]],
);
my $folder = tempdir(CLEANUP => 1);
my $failed = 0;

# ptxas jumps out of a long loop by a call of a place that is no function.
write_file("$folder/far", <<'END');
	.target	sm_80
	.section	.text.far_jump,"ax",@progbits
        .other          far_jump,@"STO_CUDA_ENTRY STV_DEFAULT"
far_jump:
        /*0000*/                   MOV R2, c[0x0][0x160] ;
.L_x_1:
        /*0010*/                   LDG.E R4, [R2.64] ;
        /*0020*/                   IADD3 R2, R2, 0x4, RZ ;
        /*0030*/                   ISETP.NE.AND P0, PT, R2, RZ, PT ;
        /*0040*/              @!P0 CALL.REL.NOINC `(.L_x_2) ;
        /*0050*/                   BRA `(.L_x_1) ;
.L_x_2:
        /*0060*/                   STG.E [R2.64], R4 ;
        /*0070*/                   EXIT ;
END
my $far = pass_line(judged_of('cat', "$folder/far")->{far_jump});
if ($far ne '4 3 | 1 5 1 4 0 0 4 0 0') {
  print "a far jump: '$far' (expected one pass of 5 instructions and 3 beside it)\n";
  $failed = 1;
}
for my $architecture (qw(80 90a)) {
  system($nvcc, '-std=c++20', '-O3', '-cubin', "-arch=sm_$architecture", '-o', "$folder/$architecture.cubin",
    "$FindBin::RealBin/passes.cu") == 0 or die "nvcc fails for sm_$architecture\n";
  my $judged = judged_of($nvdisasm, "$folder/$architecture.cubin");
  for my $name (sort keys %expected) {
    my $found = join '; ', map { my $p = $_; join ' ', map { $p->{$_} } qw(elements loads load_bytes stores store_bytes flight) }
      @{ $judged->{$name}{passes} // [] };
    my $wanted = join '; ', map { join ' ', @$_ } @{ $expected{$name} };
    next if $found eq $wanted;
    print "$name, sm_$architecture: '$found' (expected '$wanted')\n";
    $failed = 1;
  }
  # A pass has all instructions of its loop, from the first one to the branch back.
  my $code = $judged->{halves_bf16}{passes}[0]{path};
  if ($code->[-1]{op} ne 'BRA' || $judged->{halves_bf16}{passes}[0]{instructions} != @$code || @$code > 16) {
    print "halves_bf16, sm_$architecture: ", scalar(@$code), " instructions, the last one $code->[-1]{op} (expected up to 16, and BRA)\n";
    $failed = 1;
  }
}
exit $failed;
