"""The store on simulated disks: crashes, torn and lost writes, full and failing disks, under seeds."""
