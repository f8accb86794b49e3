def vint(n):
    o=b''
    while n>127: o+=bytes([n&127|128]); n>>=7
    return o+bytes([n])
def f(num,b):
    if isinstance(b,str): b=b.encode()
    return vint(num<<3|2)+vint(len(b))+b
def parse(b):
    i=0; out=[]
    def rv():
        nonlocal i
        n=s=0
        while True:
            c=b[i]; i+=1; n|=(c&127)<<s; s+=7
            if c<128: return n
    while i<len(b):
        k=rv()
        if k&7==2:
            l=rv(); out.append((k>>3,b[i:i+l])); i+=l
        elif k&7==0: out.append((k>>3,rv()))
    return out
CDS='type.googleapis.com/envoy.config.cluster.v3.Cluster'
EDS='type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment'
def any_(t,body): return f(1,t)+f(2,body)
def delta_resp(t,nonce,res,removed=()):
    return b''.join(f(2,f(3,n)+f(1,v)+f(2,any_(t,f(1,n)))) for n,v in res)+f(4,t)+f(5,nonce)+b''.join(f(6,r) for r in removed)
