package load

// The wire: a veth pair between two network namespaces of the run. The near end is what policies and peers govern; all
// that the run starts is there, bulkhead too, but the far ends of loads. Nothing leads from either namespace to the
// machine's interfaces.
const (
	NearNIC  = "bhbench0"
	FarNIC   = "bhbench1"
	NearAddr = "10.79.0.1"
	FarAddr  = "10.79.0.2"
	// firstPort is that of the first load; the namespaces are the run's own, so nobody else listens there.
	FirstPort = 5201
)

// FlowIn is a load that sends from the far end to the near one.
const FlowIn = "in"
